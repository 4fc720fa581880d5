"""The contract of targets. Axes: N rows of a set, B rows of a batch, C names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from torch import Tensor

from nlu.data.dataset import Files
from nlu.data.layouts import Layout, Packed, Problem, Values
from nlu.data.store import StoredSet
from nlu.data.tokenizing import Tokenizer

Key = tuple[int, int]
"""(seed, epoch)"""
SCORING: Key = (0, -1)
"""the key of every batch that is scored or predicted; so a set has the same masks in every evaluation of every run"""
ONE_CLASS = ("classes", "soft_classes")
"""kinds of target whose examples are of one class, the one with the largest logit"""


@dataclass
class Gathered:
    """The rows of a batch during collation, in the order of the batch."""

    stored: StoredSet
    rows_B: np.ndarray
    """index of each row in `stored`"""
    examples_B: np.ndarray
    """index of each example in its set; with `key` it determines all random numbers of an example"""
    key: Key
    """(seed, epoch) of a training batch, else SCORING"""
    packed: Packed
    """the sequences of the batch; a target may change tokens and units in place, or replace all of it"""
    rows_of_set: np.ndarray | None = None
    """index in `stored` of each row of the set that the batch is from, ascending; None: all rows"""


class Target:
    """What the model learns to predict for an example: read from a row, stored in one column, collated into a batch.

    A task names its target by the dotted name of the class. To define another target, derive from this class and
    implement `kind`, `roles`, `read`, `column` and `collate`.
    """

    kind: str
    """one word for the kind of target; a class constant"""
    roles: tuple[str, ...] = ()
    """fields, one of which holds the target; a class constant"""
    streams: bool = False
    """whether `fit` needs no training rows, and `close` names none; a class constant"""
    looks: bool = False
    """whether it looks at the first training rows before any is read; a class constant"""
    remap: list[int] | None = None
    """the final number for each number that `read` returned before `close`; None: these are final"""

    def __init__(self, files: Files):
        """Create a target before any row is read; `files` is the `data` group of the configuration."""

    def look(self, layout: Layout, rows: Iterable[Values]) -> Layout:
        """See training rows with valid texts before any is read; returns the layout that suits them."""
        return layout

    def read(self, values: Values) -> tuple[object, Problem | None]:
        """Return (value to store, None) for a row with valid texts, or (None, problem)."""
        raise NotImplementedError

    def column(self) -> pa.DataType | None:
        """Return the Arrow type of the stored values: numbers, or lists of numbers such as `pa.list_(pa.float32())`.

        None: nothing is stored. `stored.scalars` and `stored.lists` return values in this type. A value that the type
        cannot hold is an error that names its row.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Fix the order of names after the training set was read. Raises DataError if it has too few labels."""

    def meta(self) -> dict[str, object]:
        """Return the arguments of `from_meta`, as JSON."""
        return {}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        """Return the closed target that returned `meta`."""
        # Without __init__, which is for a target whose rows are still to be read.
        target = cls.__new__(cls)
        vars(target).update(meta)
        return target

    def read_as(self, files: Files) -> None:
        """Read further rows as `files` says. Called after `from_meta`, whose argument does not describe files."""
        return

    @property
    def names(self) -> list[str]:
        """The name of each number that is stored, in order; empty for numbers without names."""
        return []

    @property
    def num_outputs(self) -> int:
        """The number of logits for each example or unit."""
        return len(self.names)

    def fit(self, stored: StoredSet, rows_N: np.ndarray, tokenizer: Tokenizer) -> None:
        """Compute statistics of the training rows after splitting; `rows_N` are their indices in the training set.

        `tokenizer` made their tokens. All that `collate` needs of them must be in `meta`.
        """
        return

    def require_targets(self, name: str, stored: StoredSet, rows_N: np.ndarray) -> None:
        """Raise DataError if these rows of the set `name` have nothing to predict. Called after `fit`, for each set
        whose rows are all there."""
        return

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return the targets of a batch by name.

        A target may replace tokens in place, in `rows.packed.tokens_T`, and choose the tokens that are labelled, in
        `rows.packed.units_U` with `unit_counts_B`. Random numbers must be a function of `rows.key`, the example's index
        in `rows.examples_B` and a position in the example (`nlu.data.seeds.uniforms`). Then they do not depend on batch
        size, accumulation, ranks or restarts, and are the same in every evaluation. A target whose sequences have other
        lengths replaces `rows.packed`, and puts `rows_B` and `examples_B` in the order of these lengths.

        On a GPU another thread calls it while a step is computed, so it must not change the target.
        """
        raise NotImplementedError

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return a number for each row that is equal for equal targets; (B,), int64."""
        return np.zeros(len(rows_B), np.int64)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the strata that folds spread evenly, one row after another, and the number of strata of each row (N,).

        By default every row is in stratum 0.
        """
        return np.zeros(len(rows_N), np.int64), np.ones(len(rows_N), np.int64)

    def about(self) -> Mapping[str, object]:
        """Return the entry of data.json that describes the target of all sets."""
        return {}

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> Mapping[str, object]:
        """Return the entries of data.json that describe the targets of a set, in memory that does not grow with it."""
        return {}


def named_counts(names: list[str], counts_C: np.ndarray) -> dict[str, int]:
    """Return the counts by name."""
    return {name: int(count) for name, count in zip(names, counts_C, strict=True)}
