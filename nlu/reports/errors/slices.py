"""How wrong the rows of a kind are, with a 95 % interval. Axes: N rows."""

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Slice:
    """Some rows of a set."""

    name: str
    rows: int
    wrong: int | None
    """None where predictions are near or far, not right or wrong"""
    value: float | None
    """the share that is wrong, or the mean distance from what is right; None without rows"""
    low: float | None
    high: float | None
    more: dict[str, int | str] = field(default_factory=dict)
    """further columns, by header"""


def rate(name: str, rows: int, wrong: int, more: dict[str, int | str] | None = None) -> Slice:
    """Return the share that is wrong, with Wilson's interval (J. of the American Statistical Association 22, 1927).

    It lies within 0 and 1 and holds for few rows and rare errors too, where the usual p ± 1.96 sd does not.
    """
    if not rows:
        return Slice(name, 0, 0, None, None, None, more or {})
    from scipy.stats import binomtest

    interval = binomtest(wrong, rows).proportion_ci(LEVEL, method="wilson")
    return Slice(name, rows, wrong, wrong / rows, float(interval.low), float(interval.high), more or {})


def mean(name: str, distance_N: np.ndarray) -> Slice:
    """Return the mean distance, with the interval of a normal mean; without ends for fewer than two rows."""
    rows = len(distance_N)
    if not rows:
        return Slice(name, 0, None, None, None, None)
    value = float(distance_N.mean())
    if rows == 1:
        return Slice(name, 1, None, value, None, None)
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * float(distance_N.std(ddof=1)) / math.sqrt(rows)
    return Slice(name, rows, None, value, max(0.0, value - half), value + half)


def slice_of(name: str, value_N: np.ndarray, is_rate: bool) -> Slice:
    """Return the slice of rows that have these values: 1 wrong and 0 right, or distances."""
    return rate(name, len(value_N), int(value_N.sum())) if is_rate else mean(name, value_N)


def by_bounds(
    value_N: np.ndarray, measured_N: np.ndarray, bounds: list[float], names: list[str], is_rate: bool
) -> list[Slice]:
    """Cut rows by what is measured of each: the first part up to the first bound, included, and so on.

    `names` are one more than the bounds; parts without rows are left out.
    """
    part_N = np.searchsorted(np.array(bounds), measured_N, side="left")
    found = [slice_of(name, value_N[part_N == part], is_rate) for part, name in enumerate(names)]
    return [one for one in found if one.rows]
