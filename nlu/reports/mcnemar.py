"""McNemar's test of two classifiers on the same examples, and Holm's correction for several such tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FEW_DISCORDANT = 25
"""below, the distribution of chi squared is too coarse for the counts, and the test is exact"""


@dataclass(frozen=True)
class McNemar:
    """The result of one test."""

    method: Literal["exact", "chi squared"]
    statistic: float | None
    """chi squared with one degree of freedom; None for the exact test"""
    p_value: float


def mcnemar(first_only: int, second_only: int) -> McNemar:
    """Test whether two classifiers are right equally often (McNemar, Psychometrika 12, 1947).

    The arguments count the discordant examples: right by the first alone, and by the second alone. With fewer than 25
    of them the test is the exact two-sided binomial one, from there on chi squared with the correction for continuity,
    (|b - c| - 1)^2 / (b + c) (Edwards, Psychometrika 13, 1948), and 0 where b is c.
    """
    from scipy.stats import binomtest, chi2

    discordant = first_only + second_only
    if discordant < FEW_DISCORDANT:
        p_value = float(binomtest(first_only, discordant).pvalue) if discordant else 1.0
        return McNemar("exact", None, p_value)
    statistic = max(abs(first_only - second_only) - 1, 0) ** 2 / discordant
    return McNemar("chi squared", statistic, float(chi2.sf(statistic, 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p adjusted for being one of several, in their order (Holm, Scandinavian J. of Statistics 6, 1979).

    The smallest of m is multiplied by m, the next by m - 1, ...; none is above 1 or below one that was smaller.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
