"""A set as it is trained on or scored: which of the stored rows take part, and their target."""

from collections.abc import Iterator
from copy import copy
from typing import Self

import numpy as np

from nlu.config.sentences import called
from nlu.data.arrays import occurrences
from nlu.data.layouts import Layout, Values
from nlu.data.reading import Texts
from nlu.data.store import EncodedRows, Origin, StoredSet, chunks_of, record_batch
from nlu.data.targets import NoTarget, Target


class Examples:
    """A view of a stored set: the rows that take part, in file order. Indices of examples count these rows."""

    is_growing = False
    """whether rows may still be written"""

    def __init__(
        self,
        name: str,
        stored: StoredSet,
        rows_N: np.ndarray,
        target: Target,
        layout: Layout,
        origin: Texts | None = None,
    ):
        """`origin`: reads the texts again; None if the files are unknown."""
        self.name = name
        self.stored = stored
        self.rows_N = rows_N
        self.target = target
        self.layout = layout
        self.lengths_N = stored.lengths_N[rows_N]
        self.rows_of_set = rows_N
        """the rows of the whole set, also where `some` of its examples were taken; ascending"""
        self._origin = origin
        self.member = ""
        """the set of a mixture that these rows belong to; "" in a run with one set"""

    def __len__(self) -> int:
        return len(self.rows_N)

    def some(self, examples_B: np.ndarray) -> Self:
        """Return a set of only these examples, which are given in ascending order."""
        # A view: the columns of the stored set are shared.
        part = copy(self)
        part.rows_N, part.lengths_N = self.rows_N[examples_B], self.lengths_N[examples_B]
        return part

    def of_member(self, member: str) -> Self:
        """Return the same rows as a set of a mixture, whose name contains both names."""
        part = copy(self)
        part.name, part.member = f"{self.name}-{member}", member
        return part

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """Return how often each token occurs in these rows; (vocab_size,), int64."""
        return occurrences(map(self.stored.tokens, chunks_of(self.rows_N)), vocab_size)

    def place(self, example: int) -> str:
        """Return FILE:ROW of an example, or its number in the set if the files are unknown."""
        if self._origin is None:
            return f"{self.name}: example {example}"
        row_B = self.rows_N[example : example + 1]
        path = self._origin.sources[int(self.stored.scalars("file", row_B)[0])].path
        return f"{called(path)}:{self.stored.scalars('number', row_B)[0]}"

    def texts(self) -> Iterator[Values | None]:
        """Yield the text of every example in order, by field: text, text_a and text_b, or tokens.

        The files are read again, row by row. An example whose file is gone, or has changed there, yields None.
        """
        if self._origin is None:
            return iter([None] * len(self))
        return self._origin.of(self.stored, self.rows_N)


def in_memory(encoded: EncodedRows, layout: Layout) -> Examples:
    """Return encoded rows as a set without targets."""
    count = len(encoded.lengths_N)
    nowhere = Origin(*(np.zeros(count, np.int64) for _ in range(4)))
    stored = StoredSet([record_batch(encoded, [], None, nowhere)])
    return Examples("rows", stored, np.arange(count), NoTarget.from_meta({}), layout)
