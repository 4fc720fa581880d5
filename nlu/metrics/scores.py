"""The scores of a set, and the contract of scorers, which compute them.

A scorer receives one record for each example, in any order, and can be merged with other scorers. So several processes
can score a set, or folds can be scored together, with the same bits in the result. Axes: N examples, C classes.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypedDict, runtime_checkable

import numpy as np

Record = Mapping[str, Any]
"""one example: its label, its prediction and what the scores need, in the types of JSON"""
SMALLEST = 1074
"""each float is a multiple of 2**-1074"""


class LabelRow(TypedDict):
    """The scores of one label, or type of span."""

    label: str
    examples: int
    correct: int
    precision: float
    recall: float
    f1: float


@dataclass
class Scores:
    """The metrics of a set, and its table by label."""

    metrics: dict[str, float]
    by_label: list[LabelRow] = field(default_factory=list)
    by_query: dict[str, list[float]] = field(default_factory=dict)
    """for metrics that are means over queries: the value of each query, by metric"""


class Scorer(Protocol):
    """Adds up the scores of one set."""

    def add(self, record: Record) -> None:
        """Count one example."""

    def merge(self, other: Self) -> None:
        """Count all examples that another scorer of the same set has counted."""

    def result(self) -> Scores:
        """Return the scores of all examples so far."""


@runtime_checkable
class Averaging(Protocol):
    """A scorer with averages over classes, some of which may be absent from a resample."""

    def known(self) -> object:
        """Return what the scorer of a resample needs for averages over the same classes."""

    def drawn_from(self, known: Any) -> None:
        """Set what the scorer of all examples returned from `known`; the examples counted here are a resample."""


class Total:
    """A sum that does not depend on the order of its terms, since it is rounded only once, in `value`."""

    def __init__(self) -> None:
        self._scaled = 0
        self._not_finite = 0.0

    def add(self, number: float) -> None:
        if math.isfinite(number):
            numerator, denominator = float(number).as_integer_ratio()
            # The denominator of a float is a power of two; integers of Python have any size.
            self._scaled += numerator << (SMALLEST + 1 - denominator.bit_length())
        else:
            # inf - inf is NaN in any order.
            self._not_finite += number

    def merge(self, other: Self) -> None:
        self._scaled += other._scaled
        self._not_finite += other._not_finite

    @property
    def value(self) -> float:
        # Dividing two integers rounds once.
        return self._scaled / (1 << SMALLEST) + self._not_finite


class Columns:
    """The base of scorers that keep sums over examples, and a few numbers of each, for what is no sum.

    The numbers of several processes are put one behind the other. So `result` may use nothing that depends on their
    order, such as a sum of floats; `total` does not.
    """

    def __init__(self, names: Sequence[str] = (), *, sums: Sequence[str] = (), **columns: str):
        """`names` of classes or labels; `columns`: the type of each, as in the standard module `array`."""
        self.names = list(names)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.sums = {name: Total() for name in sums}
        self.columns: dict[str, array[float]] = {name: array(type_) for name, type_ in columns.items()}
        self.examples = 0

    def __len__(self) -> int:
        return self.examples

    def keep(self, numbers: Record) -> None:
        """Keep the numbers of one example, one for each sum and column."""
        self.examples += 1
        for name, one in self.sums.items():
            one.add(numbers[name])
        for name, column in self.columns.items():
            column.append(numbers[name])

    def add(self, record: Record) -> None:
        """Keep what a record holds under the names of the sums and columns."""
        self.keep(record)

    def merge(self, other: Self) -> None:
        self.examples += other.examples
        for name, one in other.sums.items():
            self.sums[name].merge(one)
        for name, column in other.columns.items():
            self.columns[name].extend(column)

    def arrays(self, *names: str) -> list[np.ndarray]:
        """Return copies of columns; (N,) each."""
        return [np.array(self.columns[name]) for name in names]

    def total(self, name: str) -> float:
        return self.sums[name].value

    def mean(self, name: str) -> float:
        return self.total(name) / len(self)


def precision_recall_f1(right_C: np.ndarray, predicted_C: np.ndarray, wanted_C: np.ndarray) -> np.ndarray:
    """Return the three scores of each class, NaN where a denominator is 0, from numbers of examples; (3, C)."""
    with np.errstate(invalid="ignore"):
        return np.array([right_C / predicted_C, right_C / wanted_C, 2 * right_C / (predicted_C + wanted_C)])


def micro(right_C: np.ndarray, predicted_C: np.ndarray, wanted_C: np.ndarray) -> list[float]:
    """Return precision, recall and F1 of all classes together, 0 where a denominator is 0."""
    sums = [np.array([count_C.sum()]) for count_C in (right_C, predicted_C, wanted_C)]
    return np.nan_to_num(precision_recall_f1(*sums))[:, 0].tolist()


def by_label(names: Sequence[str], wanted_C: np.ndarray, right_C: np.ndarray, scores_3C: np.ndarray) -> list[LabelRow]:
    """Return the table by label, given `precision_recall_f1`; a score without a denominator is 0."""
    found = zip(names, wanted_C.tolist(), right_C.tolist(), *np.nan_to_num(scores_3C).tolist(), strict=True)
    return [
        LabelRow(label=label, examples=examples, correct=correct, precision=precision, recall=recall, f1=f1)
        for label, examples, correct, precision, recall, f1 in found
    ]
