"""The scores of a set, and the contract of scorers, which compute them.

A scorer receives one record for each example, in any order, and can be merged with other scorers. So several processes
can score a set, or folds can be scored together, with the same bits in the result. Sums are exact, since
floating-point addition depends on the order of its terms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypedDict, runtime_checkable

Record = Mapping[str, Any]
"""one example: its label, its prediction and what the scores need, in the types of JSON"""
# Floats of at least 2**-8 are multiples of 2**-60, so they are added exactly; smaller ones lose less than that.
FRACTION_BITS = 60


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


class ExactSum:
    """A sum that does not depend on the order of its terms: each is rounded once, to a multiple of 2**-60."""

    def __init__(self) -> None:
        self._scaled = 0
        self._not_finite: float | None = None

    def add(self, value: float) -> None:
        if math.isfinite(value):
            numerator, denominator = value.as_integer_ratio()
            # The denominator of a float is a power of two.
            shift = FRACTION_BITS - (denominator.bit_length() - 1)
            # Integers of Python have any size, so no sum overflows.
            self._scaled += numerator << shift if shift >= 0 else numerator >> -shift
        else:
            # inf - inf is NaN in any order, so this sum needs no exactness.
            self._not_finite = value if self._not_finite is None else self._not_finite + value

    def merge(self, other: Self) -> None:
        self._scaled += other._scaled
        if other._not_finite is not None:
            self.add(other._not_finite)

    @property
    def value(self) -> float:
        """The sum; inf or NaN if such numbers were added."""
        # Dividing two integers rounds once.
        return self._scaled / (1 << FRACTION_BITS) if self._not_finite is None else self._not_finite


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, 0 if the denominator is 0."""
    return numerator / denominator if denominator else 0.0
