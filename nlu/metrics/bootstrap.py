"""Intervals of scores by the bootstrap: how much the scores depend on the choice of rows.

Efron and Tibshirani 1993, An Introduction to the Bootstrap, sections 13.3 (percentile intervals) and 8.5 (resampling
whole groups). With more than MOST_BLOCKS rows we resample random blocks of rows instead of single rows. This changes
the width of an interval by about 5 %, and a resample is then merged from scorers that count each row only once.

Axes: N rows, M metrics, Q queries, R resamples, U units.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from nlu.metrics.scores import Averaging, Record, Scorer
from nlu.metrics.thresholds import is_setting

LEVEL = 0.95
BIASED = ("ece",)
"""metrics of absolute differences, which grow with noise and so with the noise that resampling adds"""
MOST_BLOCKS = 200
Intervals = dict[str, list[float] | None]
"""both ends, by metric; None for a metric without an interval"""


class Blocks:
    """Scorers of blocks of rows, which are merged into resamples."""

    def __init__(self, make: Callable[[], Sequence[Scorer]], block_N: np.ndarray):
        """`make` returns new scorers; `block_N` is the block of each row, from `blocks_of`; (N,)."""
        self._make, self._block_N = make, block_N
        self._blocks = [make() for _ in range(int(block_N.max()) + 1)]

    def add(self, row: int, record: Record) -> None:
        """Count a row, by its number."""
        for scorer in self._blocks[self._block_N[row]]:
            scorer.add(record)

    def whole(self) -> Sequence[Scorer]:
        """Return the scorers of all rows."""
        return self._joined(range(len(self._blocks)))

    def intervals(self, resamples: int, seed: int, advance: Callable[[int], None] = lambda done: None) -> Intervals:
        """Return for each metric the ends of the interval that holds LEVEL of the resamples.

        It is None if a resample lacks the metric, such as AUC without rows of a class, if there is only one block, and
        for metrics that are settings.
        """
        import sklearn

        rng = np.random.default_rng(seed)
        whole = self.whole()
        # A resample may lack a rare class. Leaving it out of an average would move the average by more than the choice
        # of rows does.
        known = [one.known() if isinstance(one, Averaging) else None for one in whole]
        drawn: dict[str, list[float]] = {}
        # The checks of arguments would take longer than the scores.
        with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            for _ in range(resamples):
                # With replacement, as many blocks as there are: merging a scorer twice counts its rows twice.
                resample = self._joined(rng.integers(len(self._blocks), size=len(self._blocks)))
                for one, of_all in zip(resample, known, strict=True):
                    if isinstance(one, Averaging):
                        one.drawn_from(of_all)
                for name, value in metrics_of(resample).items():
                    drawn.setdefault(name, []).append(value)
                advance(1)
        point = metrics_of(whole)
        return {name: self._ends(name, values, point[name]) for name, values in drawn.items()}

    def _ends(self, name: str, drawn: list[float], point: float) -> list[float] | None:
        ends = None if is_setting(name) else _ends(drawn, len(self._blocks))
        if ends is None or name not in BIASED:
            return ends
        # Subtract the bias that resampling adds. Without that, the score itself may lie below its interval.
        added = float(np.median(drawn)) - point
        return [min(max(0.0, end - added), 1.0) for end in ends]

    def _joined(self, blocks: Iterable[int]) -> Sequence[Scorer]:
        joined = self._make()
        for block in blocks:
            for scorer, other in zip(joined, self._blocks[block], strict=True):
                scorer.merge(other)
        return joined


def metrics_of(scorers: Sequence[Scorer]) -> dict[str, float]:
    """Return the metrics of several scorers of the same rows; if two have one of the same name, that of the first."""
    found: dict[str, float] = {}
    for scorer in scorers:
        found = scorer.result().metrics | found
    return found


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
