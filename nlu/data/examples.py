"""A set as it is trained on or scored: which of the stored rows take part, and their target.

A fixed sample of a set, which is scored faster than the whole set. Axes: N rows, C classes, G groups.

The sample is a function of the seed and of the stored rows, so every evaluation scores the same rows, with any
number of processes and after any restart.
"""

import logging
from collections.abc import Iterator
from copy import copy
from typing import Self

import numpy as np

from nlu.config.errors import UserError
from nlu.config.sentences import called
from nlu.data.arrays import occurrences
from nlu.data.layouts import Layout, Values
from nlu.data.reading import Texts
from nlu.data.seeds import uniforms
from nlu.data.store import EncodedRows, Origin, StoredSet, chunks_of, record_batch
from nlu.data.targets import NoTarget, Relevance, Target

log = logging.getLogger(__name__)


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

    @property
    def is_of_queries(self) -> bool:
        """Whether its files have whole queries, each with several second texts to be ranked."""
        has_lists = self._origin is not None and self._origin.reading.has_lists
        return has_lists and isinstance(self.target, Relevance)

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


def sampled(part: Examples, rows: int | None, seed: int) -> Examples:
    """Return a set of `rows` of the examples, or the set itself if it has at most that many or `rows` is None.

    Each class has its share of the sample, rounded by largest remainders. Targets without exactly one class for each
    row get a plain sample. Rows of a group (`folds.group_by`), and of a query that is ranked, stay together: the sample
    then has whole groups, in random order, until it has at least `rows` rows.
    """
    if rows is None or len(part) <= rows:
        return part
    group_N = _groups_of(part)
    if group_N is not None:
        return part.some(np.flatnonzero(_of_whole_groups(group_N, rows, seed)))
    strata, counts_N = part.target.strata(part.stored, part.rows_N)
    class_N = strata if (counts_N == 1).all() else np.zeros(len(part), np.int64)
    _, class_N, counts_C = np.unique(class_N, return_inverse=True, return_counts=True)
    wanted_C, remainder_C = np.divmod(rows * counts_C, len(class_N))
    wanted_C[np.argsort(-remainder_C, kind="stable")[: rows - wanted_C.sum()]] += 1
    return part.some(np.flatnonzero(_of_each_class(class_N, _drawn(part.rows_N, seed), wanted_C)))


def rows_of_each_class(stored: StoredSet, rows_N: np.ndarray, target: Target, count: int, seed: int) -> np.ndarray:
    """Return `count` of the rows of each class, drawn by the seed, ascending; all rows of a class that has fewer.

    The draw of a larger count contains that of a smaller one. Raises UserError for a target without classes.
    """
    if target.kind != "classes":
        raise UserError(
            f"data.rows_per_class is {count}, but the rows have no class each (their target is {target.kind}); set it "
            "to null, or data.max_rows"
        )
    names_C, class_N, counts_C = np.unique(target.strata(stored, rows_N)[0], return_inverse=True, return_counts=True)
    if few := [f"{target.names[name]} {n}" for name, n in zip(names_C, counts_C, strict=True) if n < count]:
        log.warning("data: fewer than data.rows_per_class=%d rows have these labels: %s", count, ", ".join(few))
    drawn_N = _drawn(rows_N, seed, "rows_per_class")
    return rows_N[_of_each_class(class_N, drawn_N, np.full(len(counts_C), count))]


def sample(part: Examples, count: int, seed: int) -> Examples:
    """Return `count` examples of a set, or all if it has fewer: the same share of each label, drawn with the seed.

    If an example has several labels, the first one counts.
    """
    if count >= len(part):
        return part
    strata, counts_N = part.target.strata(part.stored, part.rows_N)
    has_N = counts_N > 0
    first_N = np.full(len(part), -1, np.int64)
    first_N[has_N] = strata[(np.cumsum(counts_N) - counts_N)[has_N]]
    # Sort by label and, within a label, at random. Equal steps through this order take the same share of each label.
    chance_N = np.random.default_rng(seed).permutation(len(part))
    by_label_N = np.lexsort((chance_N, first_N))
    # Take every (len / count)-th row in the order of labels.
    taken = ((np.arange(count) + 0.5) * len(part) / count).astype(np.int64)
    return part.some(np.sort(by_label_N[taken]))


def _groups_of(part: Examples) -> np.ndarray | None:
    """Return the hash of each row's group or query, (N,); None if rows may be separated."""
    if (group_N := part.stored.group_N[part.rows_N]).any():
        return group_N
    return part.stored.first_N[part.rows_N] if isinstance(part.target, Relevance) else None


def _of_each_class(class_N: np.ndarray, drawn_N: np.ndarray, wanted_C: np.ndarray) -> np.ndarray:
    """Return which rows are chosen, (N,): of each class the wanted number, those with the smallest numbers drawn."""
    counts_C = np.bincount(class_N)
    order_N = np.lexsort((drawn_N, class_N))
    begin_C = np.cumsum(counts_C) - counts_C
    is_chosen_N = np.zeros(len(class_N), bool)
    is_chosen_N[order_N] = np.arange(len(class_N)) - begin_C[class_N[order_N]] < wanted_C[class_N[order_N]]
    return is_chosen_N


def _of_whole_groups(group_N: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """Return which rows are chosen, (N,): those of the groups with the smallest numbers."""
    group_G, group_N, counts_G = np.unique(group_N, return_inverse=True, return_counts=True)
    order_G = np.argsort(_drawn(group_G, seed), kind="stable")
    before_G = np.cumsum(counts_G[order_G]) - counts_G[order_G]
    is_chosen_G = np.zeros(len(group_G), bool)
    is_chosen_G[order_G] = before_G < rows
    return is_chosen_G[group_N]


def _drawn(key_N: np.ndarray, seed: int, purpose: str = "eval_rows") -> np.ndarray:
    """Return a random number for each key, which depends only on the key, the seed and the purpose; (N,)."""
    return uniforms(seed, purpose, example_T=key_N, place_T=np.zeros(len(key_N), np.int64))
