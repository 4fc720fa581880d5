"""What scoring gives, and the contract of those who compute it.

A scorer is told one record an example, in any order, and can be joined with another's, so that a set is scored by
several processes, or fold by fold, and the result is the same to the bit. Sums are exact, since floating-point addition
hangs on the order of its terms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

Record = Mapping[str, Any]
"""of one example: its target, its prediction and what the scores need, in the types of JSON"""
FRACTION_BITS = 60


@dataclass
class Scores:
    """Metrics of a set, and the table by label."""

    metrics: dict[str, float]
    by_label: list[dict[str, Any]] = field(default_factory=list)
    by_query: dict[str, list[float]] = field(default_factory=dict)
    """of metrics that are means over queries, which are no sums over rows: the value of each query"""


class Scorer(Protocol):
    """Adds up the scores of one set."""

    def add(self, record: Record) -> None:
        """Count one example."""

    def merge(self, other: Self) -> None:
        """Count all examples that another scorer of the same set was told."""

    def result(self) -> Scores:
        """Return the scores of all examples so far."""


@runtime_checkable
class Averaging(Protocol):
    """A scorer with averages over classes, of which a resample may lack some."""

    def known(self) -> Any:
        """Return what the scorer of a resample is to be told, so that its averages run over the same classes."""

    def drawn_from(self, known: Any) -> None:
        """Take what the scorer of all examples knows: the examples told here are a resample of them."""


class ExactSum:
    """The sum of numbers, the same in whatever order they come: each is rounded once, to a multiple of 2**-60."""

    def __init__(self) -> None:
        self._scaled = 0
        self._not_finite: float | None = None

    def add(self, value: float) -> None:
        if math.isfinite(value):
            numerator, denominator = value.as_integer_ratio()
            # A denominator of a float is a power of two.
            shift = FRACTION_BITS - (denominator.bit_length() - 1)
            self._scaled += numerator << shift if shift >= 0 else numerator >> -shift
        else:
            self._not_finite = value if self._not_finite is None else self._not_finite + value

    def merge(self, other: Self) -> None:
        self._scaled += other._scaled
        if other._not_finite is not None:
            self.add(other._not_finite)

    @property
    def value(self) -> float:
        """The sum; inf or NaN where such numbers were added."""
        # Division of two integers rounds once.
        return self._scaled / (1 << FRACTION_BITS) if self._not_finite is None else self._not_finite


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, 0 where there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0
