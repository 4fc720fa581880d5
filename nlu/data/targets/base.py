"""The contract of targets. Axes: N rows of a set, B rows of a batch, C names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
from torch import Tensor

from nlu.data.dataset import Files
from nlu.data.layouts import Packed
from nlu.data.store import StoredSet
from nlu.data.tokenizing import Tokenizer

Values = Mapping[str, Any]
Problem = tuple[str, str]
"""the field of a row whose target cannot be used, and the rule that its value breaks"""
Key = tuple[int, int]
"""(seed, epoch)"""
SCORING: Key = (0, -1)
"""the key of every batch that is scored or predicted, so that a set is the same in every evaluation of every run"""


@dataclass
class Gathered:
    """The rows of a batch while it is put together, in the order in which the batch holds them."""

    stored: StoredSet
    rows_B: np.ndarray
    """number of each row in `stored`"""
    examples_B: np.ndarray
    """number of each example in its set; with `key` it decides all random numbers of an example"""
    key: Key
    """(seed, epoch) of a training batch, else SCORING"""
    packed: Packed
    """the sequences of the batch; a target may change tokens and name units, and the batch takes what it finds here"""


class Target(Protocol):
    """What the model learns to give for an example: read from a row, stored in one column, gathered into a batch.

    A task names its target by the dotted name of the class. A target of your own derives from this class and defines
    `kind`, `roles`, `read`, `column` and `collate`.
    """

    kind: str
    """one word for the kind of target; a class constant"""
    roles: tuple[str, ...] = ()
    """the fields of which one holds the target; a class constant that is read without importing"""
    remap: list[int] | None = None
    """the final number for each that `read` returned before `close`; null where those were final"""

    def __init__(self, files: Files):
        """Start a target before any row was read; `files` is the `data` group of the configuration."""

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        """Return (value to store, None) for a row, or (None, problem). The texts of the row were checked before."""
        raise NotImplementedError

    def column(self) -> pa.DataType | None:
        """Return the Arrow type of the stored values: numbers, or lists of numbers such as `pa.list_(pa.float32())`.

        None where nothing is stored. Values come back from `stored.scalars` or `stored.lists` in this type; a value
        that the type cannot hold is an error that names its row.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Fix the order of names after the training set was read. Raises DataError where it cannot be learned from."""

    def meta(self) -> dict[str, Any]:
        """Return what `from_meta` needs, as JSON."""
        return {}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        """Return the closed target whose `meta` this is."""
        target = cls.__new__(cls)
        vars(target).update(meta)
        return target

    def read_as(self, files: Files) -> None:
        """Read further rows the way these files are written; `from_meta` does not know that."""

    @property
    def names(self) -> list[str]:
        """The meaning of each number that is stored, in order; empty where the numbers are themselves the target."""
        return []

    @property
    def num_outputs(self) -> int:
        """How many numbers the model returns for each row of logits."""
        return len(self.names)

    def fit(self, stored: StoredSet, rows_N: np.ndarray, tokenizer: Tokenizer) -> None:
        """Learn from the rows that are trained on, after splitting; `rows_N` are their numbers in the training set.

        `tokenizer` gave their tokens. What `collate` needs of either must be in `meta`.
        """

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return the targets of a batch by name.

        A target may replace tokens, in place in `rows.packed.tokens_T`, and choose the tokens that are labelled, in
        `rows.packed.units_U` with `unit_counts_B`. What is random must be a function of `rows.key`, the example's
        number in `rows.examples_B` and a place in the example (`nlu.data.seeds.uniforms`): then it does not depend on
        batch size, accumulation, ranks or restarts, and scoring sees the same in every evaluation.
        """
        raise NotImplementedError

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return a number for each row that is the same for equal targets; (B,), int64."""
        return np.zeros(len(rows_B), np.int64)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what folds spread evenly: the strata of all rows, one row after another, and how many each row has.

        The second array is (N,). A target that cannot say puts every row into stratum 0.
        """
        return np.zeros(len(rows_N), np.int64), np.ones(len(rows_N), np.int64)

    def about(self) -> dict[str, Any]:
        """Return the entry of data.json that describes the target of all sets."""
        return {}

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        """Return the entries of data.json that describe the targets of a set.

        The memory that this takes must not grow with the number of rows.
        """
        return {}


def named_counts(names: list[str], counts_C: np.ndarray) -> dict[str, int]:
    """Return the counts by name."""
    return {name: int(count) for name, count in zip(names, counts_C, strict=True)}
