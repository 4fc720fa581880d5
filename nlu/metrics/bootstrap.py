"""Intervals of scores by the bootstrap: how much the scores depend on the choice of rows.

Efron and Tibshirani 1993, An Introduction to the Bootstrap, sections 13.3 (percentile intervals) and 8.5 (resampling
whole groups). With more than MOST_BLOCKS rows we resample random blocks of rows instead of single rows. This changes
the width of an interval by about 5 %, and a resample is then merged from scorers that count each row only once.

Axes: N rows, M metrics, Q queries, R resamples, U units.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from nlu.metrics.scores import Averaging, Record, Scorer, Scores
from nlu.metrics.thresholds import is_setting

LEVEL = 0.95
BIASED = ("ece",)
"""metrics of absolute differences, which grow with noise and so with the noise that resampling adds"""
MOST_BLOCKS = 200
S = TypeVar("S", bound=Scorer)
Intervals = dict[str, list[float] | None]
"""both ends, by metric; None for a metric without an interval"""


class Blocks(Generic[S]):
    """Scorers of blocks of rows, which are merged into resamples."""

    def __init__(self, make: Callable[[], S], block_N: np.ndarray):
        """`make` returns a new scorer; `block_N` is the block of each row, from `blocks_of`; (N,)."""
        self._make, self._block_N = make, block_N
        self._scorers = [make() for _ in range(int(block_N.max()) + 1)]

    def add(self, row: int, record: Record) -> None:
        """Count a row, by its number."""
        self._scorers[self._block_N[row]].add(record)

    def whole(self) -> S:
        """Return the scorer of all rows."""
        return self._joined(range(len(self._scorers)))

    def intervals(self, resamples: int, seed: int, advance: Callable[[int], None] = lambda done: None) -> Intervals:
        """Return for each metric the ends of the interval that holds LEVEL of the resamples.

        It is None if a resample lacks the metric, such as AUC without rows of a class, if there is only one block, and
        for metrics that are settings.
        """
        rng = np.random.default_rng(seed)
        whole = self.whole()
        # A resample may lack a rare class. Leaving it out of an average would move the average by more than the choice
        # of rows does.
        known = whole.known() if isinstance(whole, Averaging) else None
        point = whole.result().metrics
        drawn: dict[str, list[float]] = {}
        for _ in range(resamples):
            # With replacement, as many blocks as there are: merging a scorer twice counts its rows twice.
            blocks = rng.integers(len(self._scorers), size=len(self._scorers))
            resample = self._joined(blocks)
            if isinstance(resample, Averaging):
                resample.drawn_from(known)
            for name, value in resample.result().metrics.items():
                drawn.setdefault(name, []).append(value)
            advance(1)
        return {name: self._ends(name, values, point[name]) for name, values in drawn.items()}

    def _ends(self, name: str, drawn: list[float], point: float) -> list[float] | None:
        ends = None if is_setting(name) else _ends(drawn, len(self._scorers))
        if ends is None or name not in BIASED:
            return ends
        # Subtract the bias that resampling adds. Without that, the score itself may lie below its interval.
        added = float(np.median(drawn)) - point
        return [min(max(0.0, end - added), 1.0) for end in ends]

    def _joined(self, blocks: Iterable[int]) -> S:
        joined = self._make()
        for block in blocks:
            joined.merge(self._scorers[block])
        return joined


def intervals_of_means(
    by_query: Mapping[str, Sequence[float]], resamples: int, seed: int, advance: Callable[[int], None]
) -> Intervals:
    """Return the same for metrics that are means over queries, by resampling queries with their candidates."""
    rng = np.random.default_rng(seed)
    # All metrics of a resample use the same queries. The candidates are always those of the whole set, since ranks
    # among fewer candidates would be better.
    values_MQ = np.array(list(by_query.values()))
    drawn_MR = np.empty((len(by_query), resamples))
    for resample in range(resamples):
        drawn_MR[:, resample] = values_MQ[:, rng.integers(values_MQ.shape[1], size=values_MQ.shape[1])].mean(1)
        advance(1)
    return {name: _ends(values_R, values_MQ.shape[1]) for name, values_R in zip(by_query, drawn_MR, strict=True)}


def _ends(drawn: Sequence[float] | np.ndarray, units: int) -> list[float] | None:
    # Leaving out the resamples without a value would make the interval narrower than it is.
    if units < 2 or np.isnan(drawn).any():
        return None
    tail = (1 - LEVEL) / 2
    return [float(end) for end in np.quantile(drawn, [tail, 1 - tail])]


def blocks_of(count: int, seed: int, group_N: np.ndarray | None = None) -> np.ndarray:
    """Return the block of each of `count` rows, (N,), int64, from 0.

    A block is a group or, without groups, a row. If there are more than MOST_BLOCKS of them, they are spread over
    MOST_BLOCKS blocks at random, so that the sizes of blocks differ by at most one row or group.
    """
    unit_N = np.arange(count) if group_N is None else np.unique(group_N, return_inverse=True)[1].reshape(-1)
    units = int(unit_N.max()) + 1
    if units <= MOST_BLOCKS:
        return unit_N
    # Neighbouring rows of a file are often alike, so blocks of neighbours would differ more than random ones.
    shuffled_U = np.random.default_rng(seed).permutation(units)
    return (shuffled_U % MOST_BLOCKS)[unit_N]


class CombinedScorer:
    """Several scorers of the same rows as one. If two of them have a metric of one name, the first one's is used."""

    def __init__(self, scorers: Iterable[Scorer]):
        self.scorers = list(scorers)

    def add(self, record: Record) -> None:
        for scorer in self.scorers:
            scorer.add(record)

    def known(self) -> list[object]:
        return [one.known() if isinstance(one, Averaging) else None for one in self.scorers]

    def drawn_from(self, known: list[object]) -> None:
        for one, of_all in zip(self.scorers, known, strict=True):
            if isinstance(one, Averaging):
                one.drawn_from(of_all)

    def merge(self, other: "CombinedScorer") -> None:
        for own, theirs in zip(self.scorers, other.scorers, strict=True):
            own.merge(theirs)

    def result(self) -> Scores:
        first, *others = [scorer.result() for scorer in self.scorers]
        for scores in others:
            first.metrics = scores.metrics | first.metrics
        return first
