"""The order of the trials of a search after equal numbers of examples: do early ranks predict late ones?"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from nlu.display.insight import Ranking
from nlu.sweeps.schedulers.process import thinned
from nlu.sweeps.schedulers.scheduler import FAILED, Standing

FEWEST = 5
"""trials among which a rank correlation says something"""
MOST = 8
"""most numbers of examples at which trials are compared, spaced geometrically"""


def ranking_of(trials: Sequence[Standing]) -> Ranking | None:
    """Return the ranks of the trials by their best value so far; None unless two of them can be compared.

    Trials are compared at their k-th evaluations: at the examples of the earliest of these, since those of other batch
    sizes come a little later. With folds, up to the end of the first one. Correlations are those between each number of
    examples and the last one that `FEWEST` trials saw, among these trials, which are the better ones if others were
    stopped: among all trials they would be higher.
    """
    courses = {trial.number: _course(trial) for trial in trials if trial.state != FAILED}
    courses = {number: course for number, course in courses.items() if course}
    longest = max(map(len, courses.values()), default=0)
    at_S = [min(course[place][0] for course in courses.values() if len(course) > place) for place in range(longest)]
    best_by_trial = {number: _best_so_far(course, at_S) for number, course in courses.items()}
    counts = [sum(len(best) > place for best in best_by_trial.values()) for place in range(longest)]
    last = max((place for place, count in enumerate(counts) if count >= 2), default=None)
    if last is None:
        return None
    # The first evaluations have no earlier ones to compare with.
    end = max((place for place, count in enumerate(counts) if count >= FEWEST and place), default=None)
    places = sorted({*thinned(last + 1, MOST), *([] if end is None else [end])})
    ranks: dict[int, list[float]] = {number: [] for number in best_by_trial}
    for place in places:
        here = [number for number, best in best_by_trial.items() if len(best) > place]
        own = ranked_down([best_by_trial[number][place] for number in here])
        for number, rank in zip(here, own, strict=True):
            ranks[number].append(float(rank))
    correlations = [] if end is None else _correlations(best_by_trial, [place for place in places if place <= end], end)
    count = 0 if end is None else counts[end]
    return Ranking([at_S[place] for place in places], ranks, correlations, count)


def _course(trial: Standing) -> list[tuple[int, float]]:
    end = trial.part_ends[0] if trial.part_ends else math.inf
    return [(at, value) for at, value in trial.points if at <= end]


def _best_so_far(course: Sequence[tuple[int, float]], at_S: Sequence[int]) -> list[float]:
    """Return the best value up to the first evaluation at or after each number of examples that the trial saw."""
    found: list[float] = []
    best, place = -math.inf, 0
    for at in at_S:
        if course[-1][0] < at:
            break
        while place < len(course) and (place == 0 or course[place - 1][0] < at):
            if math.isfinite(course[place][1]):
                best = max(best, course[place][1])
            place += 1
        found.append(best)
    return found


def _correlations(best_by_trial: Mapping[int, Sequence[float]], places: Sequence[int], end: int) -> list[float]:
    reached = [best for best in best_by_trial.values() if len(best) > end]
    late = ranked_down([best[end] for best in reached])
    return [correlation(ranked_down([best[place] for best in reached]), late) for place in places]


def ranked_down(values: Sequence[float]) -> np.ndarray:
    """Return ranks from 1 for the greatest value; equal values share the mean of their ranks."""
    array = np.array(values)
    above = (array[None] > array[:, None]).sum(1)
    equal = (array[None] == array[:, None]).sum(1)
    return np.asarray(above + (equal + 1) / 2)


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return the correlation of two rows of numbers; NaN if all of a row are equal."""
    one, other = one - one.mean(), other - other.mean()
    size = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / size if size else math.nan
