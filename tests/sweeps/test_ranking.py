"""The order of trials after equal numbers of examples, against scipy."""

import math

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from nlu.sweeps.ranking import correlation, ranked_down, ranking_of
from nlu.sweeps.schedulers.scheduler import FAILED, PAUSED, Standing


def trial(number, values, *, stride=100, state=PAUSED, ends=()):
    points = [(stride * (place + 1), value) for place, value in enumerate(values)]
    return Standing(number, {}, points, 0, state, ends)


def test_correlations_equal_those_of_scipy_also_with_equal_values():
    random = np.random.default_rng(0)
    for _ in range(20):
        one, other = random.integers(0, 5, 12), random.normal(size=12).round(1)
        np.testing.assert_allclose(ranked_down(one), rankdata(-one))
        assert correlation(ranked_down(one), ranked_down(other)) == pytest.approx(spearmanr(one, other).statistic)
    assert math.isnan(correlation(np.ones(3), np.arange(3.0)))


def test_the_order_after_each_number_of_examples_is_compared_with_that_at_the_end():
    random = np.random.default_rng(1)
    values = random.random((9, 6)).cumsum(1)
    trials = [trial(number, row) for number, row in enumerate(values)]
    # Two trials saw less.
    trials += [trial(9, [9.0, 9.0]), trial(10, [0.0])]
    found = ranking_of(trials)
    assert found.examples_S == [100, 200, 300, 400, 500, 600] and found.end == 600 and found.count == 9
    expected = [spearmanr(values[:, place], values[:, -1]).statistic for place in range(6)]
    assert found.correlation_S == pytest.approx(expected) and found.correlation_S[-1] == 1.0
    firsts = [found.rank_S_by_trial[number][0] for number in range(11)]
    np.testing.assert_allclose(firsts, rankdata([*-values[:, 0], -9.0, 0.0]))
    assert found.rank_S_by_trial[9][:2] == [1.0, 1.0] and len(found.rank_S_by_trial[9]) == 2


def test_the_end_is_what_five_trials_saw_and_without_it_there_are_only_ranks():
    long, short = [trial(number, [number, 9.0 - number, number / 2]) for number in range(2)], [trial(5, [3.0, 4.0])]
    found = ranking_of([*long, *short])
    assert found.end is None and found.correlation_S == [] and found.examples_S == [100, 200, 300]
    more = [trial(number, [0.1 * number, 0.2 * number]) for number in range(6, 9)]
    found = ranking_of([*long, *short, *more])
    assert (found.end, found.count) == (200, 6) and found.examples_S == [100, 200, 300]


def test_trials_of_other_batch_sizes_are_compared_at_the_same_evaluations():
    small = [trial(number, [0.1 * number, 0.5, 0.6]) for number in range(3)]
    large = [trial(number, [0.1 * number, 0.5, 0.6], stride=104) for number in range(3, 6)]
    found = ranking_of([*small, *large])
    assert found.examples_S == [100, 200, 300] and found.count == 6
    assert [found.rank_S_by_trial[number][0] for number in range(6)] == [6, 5, 4, 3, 2, 1]


def test_the_best_value_so_far_counts_and_nan_does_not():
    trials = [trial(0, [0.5, 0.1]), trial(1, [0.2, 0.4]), trial(2, [math.nan, 0.45]), trial(3, [0.9], state=FAILED)]
    found = ranking_of(trials)
    assert found.rank_S_by_trial == {0: [1, 1], 1: [2, 3], 2: [3, 2]}
