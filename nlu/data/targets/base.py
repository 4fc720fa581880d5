"""What every target promises. Axes: N rows of a set, B rows asked for, C names."""

from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
from torch import Tensor

from nlu.data.dataset import Files
from nlu.data.store import StoredSet

Values = Mapping[str, Any]
Problem = tuple[str, str]
"""the field of a row whose target cannot be used, and the rule that its value breaks"""


class Target(Protocol):
    """What an example is to give: read from a row, stored in one column, gathered into a batch.

    A task names its target by the class's dotted name. One of your own derives from this class, which leaves it
    `kind`, `roles`, `read`, `column` and `collate` to say.
    """

    kind: str
    """one word for it, a class constant"""
    roles: tuple[str, ...] = ()
    """the fields of which one holds it, a class constant that is read without importing"""
    remap: list[int] | None = None
    """the final number for each that `read` gave out before `close`; null where they were final at once"""

    def __init__(self, files: Files):
        """A target of which nothing was read yet; `files` is the `data` group of the configuration."""

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        """Return what `column` stores for a row, or what is wrong with it. The texts of the row have no problem."""
        raise NotImplementedError

    def column(self) -> pa.DataType | None:
        """Return the type in which it is stored: a number or a list of numbers; None where there is nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Fix the order of names once the training set is read. Raises DataError where it cannot be learned from."""

    def meta(self) -> dict[str, Any]:
        """Return what `from_meta` needs, as JSON."""
        return {}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        """Return the closed target that `meta` was asked for."""
        target = cls.__new__(cls)
        vars(target).update(meta)
        return target

    def read_as(self, files: Files) -> None:
        """Read further rows, of which `from_meta` knows nothing, as these files are written."""

    @property
    def names(self) -> list[str]:
        """What its numbers mean, in their order; none where they mean themselves."""
        return []

    @property
    def num_outputs(self) -> int:
        """How many numbers a model gives for each thing to be labelled."""
        return len(self.names)

    def fit(self, stored: StoredSet, rows_N: np.ndarray) -> None:
        """Learn what hangs on the rows that are trained on, after splitting: these rows of the training set."""

    def collate(self, stored: StoredSet, rows_B: np.ndarray) -> dict[str, Tensor]:
        """Return the targets of a batch by name."""
        raise NotImplementedError

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return a number for each row that is the same for equal targets; (B,), int64."""
        return np.zeros(len(rows_B), np.int64)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what folds spread evenly: the strata that each row is of, one row after another, and how many; (N,).

        Rows of which nothing is known are all of stratum 0.
        """
        return np.zeros(len(rows_N), np.int64), np.ones(len(rows_N), np.int64)

    def about(self) -> dict[str, Any]:
        """Return what data.json says of the target of all sets."""
        return {}

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        """Return what data.json says of the targets of a set, in memory that does not grow with the rows."""
        return {}


def named_counts(names: list[str], counts_C: np.ndarray) -> dict[str, int]:
    """Return how many there are of each name."""
    return {name: int(count) for name, count in zip(names, counts_C, strict=True)}
