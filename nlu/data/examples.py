"""A set as it is trained on or scored: which of the stored rows take part, and what they are to give."""

from collections.abc import Iterator
from copy import copy
from typing import Any, Self

import numpy as np

from nlu.data.layouts import Layout
from nlu.data.reading import Texts
from nlu.data.store import StoredSet
from nlu.data.targets import Target


class Examples:
    """A view of a stored set: the rows that take part, in file order. Indices of examples count these rows."""

    def __init__(
        self, name: str, stored: StoredSet, rows_N: np.ndarray, target: Target, layout: Layout,
        origin: Texts | None = None,
    ):  # fmt: skip
        """`origin`: where the texts are read again; null where that is not known."""
        self.name = name
        self.stored = stored
        self.rows_N = rows_N
        self.target = target
        self.layout = layout
        self.lengths_N = stored.lengths_N[rows_N]
        self._origin = origin
        self.member = ""
        """the set of a mixture that these rows belong to; empty in a run with one set"""

    def __len__(self) -> int:
        return len(self.rows_N)

    def some(self, examples_B: np.ndarray) -> Self:
        """Return a set of these examples alone, which are given in ascending order."""
        part = copy(self)
        part.rows_N, part.lengths_N = self.rows_N[examples_B], self.lengths_N[examples_B]
        return part

    def of_member(self, member: str) -> Self:
        """Return the same rows as a set of a mixture, called after both."""
        part = copy(self)
        part.name, part.member = f"{self.name}-{member}", member
        return part

    def texts(self) -> Iterator[dict[str, Any] | None]:
        """Yield the text of every example in order, by field: text, text_a and text_b, or tokens.

        The files are read again, row by row. None stands for each example whose file is gone or has changed there.
        """
        if self._origin is None:
            return iter([None] * len(self))
        return self._origin.of(self.stored, self.rows_N)
