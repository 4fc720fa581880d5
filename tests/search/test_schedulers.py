"""The schedulers as pure functions: the curve model against dense formulas, encodings, and what is decided when."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.optimize import approx_fprime

from nlu.search.schedulers.encoding import (
    Encoding,
    drawn_near,
    drawn_value,
    position,
    value_at,
)
from nlu.search.schedulers.freeze_thaw import FIRST_RUNS, TIE, FreezeThaw, _chosen, _seen
from nlu.search.schedulers.process import Curves, Posterior, negative_log_posterior, prior
from nlu.search.schedulers.scheduler import ENDED, FAILED, PAUSED, RUNNING, STOPPED, Asha, Lengths, Standing, rungs

LENGTHS = Lengths(least=1, first=1, end=27, part=27)
COARSE = Lengths(least=3, first=3, end=27, part=27)
LR = FloatDistribution(1e-4, 1.0, log=True)


def dense_covariance(log_parameters, x_MC, t_M, trial_M, y_NC, t_N, trial_N):
    """The kernel of the docstring, point by point."""
    scales, (a, b, c, e, f, g, beta, alpha, _) = np.exp(log_parameters[:-9]), np.exp(log_parameters[-9:])
    found = np.zeros((len(x_MC), len(y_NC)))
    for m in range(len(x_MC)):
        for n in range(len(y_NC)):
            r = math.sqrt(5 * sum(((x_MC[m, i] - y_NC[n, i]) / scales[i]) ** 2 for i in range(x_MC.shape[1])))
            k = (1 + r + r * r / 3) * math.exp(-r)
            d = beta**alpha / (t_M[m] + t_N[n] + beta) ** alpha
            same = trial_M[m] == trial_N[n]
            found[m, n] = e + a * k + f * same + (g + b * k + c * same) * d
    return found


@pytest.fixture
def curves():
    random = np.random.default_rng(0)
    trial_N = np.repeat(np.arange(4), 3)
    return Curves(random.random((4, 2)), np.arange(2), trial_N, np.tile([0.1, 0.4, 1.0], 4), random.normal(size=12))


def test_the_posterior_equals_the_dense_formula(curves):
    log_parameters = prior(2)[0] + 0.1
    at = curves.x_TC[curves.trial_N], curves.time_N, curves.trial_N
    covariance = dense_covariance(log_parameters, *at, *at) + (np.exp(log_parameters[-1]) + 1e-6) * np.eye(12)
    x_MC = np.array([[0.3, 0.9], curves.x_TC[1]])
    wanted = x_MC, np.array([0.7, 0.8]), np.array([-1, 1])
    cross = dense_covariance(log_parameters, *wanted, *at)
    own = np.diag(dense_covariance(log_parameters, *wanted, *wanted))
    mean_M, deviation_M = Posterior(curves, log_parameters).at(wanted[0], wanted[2], wanted[1])
    np.testing.assert_allclose(mean_M, cross @ np.linalg.solve(covariance, curves.value_N), rtol=1e-6)
    variance_M = own - np.diag(cross @ np.linalg.solve(covariance, cross.T))
    np.testing.assert_allclose(deviation_M, np.sqrt(variance_M), rtol=1e-6)


def test_the_gradient_of_the_likelihood_equals_finite_differences(curves):
    log_parameters = prior(2)[0] + 0.2
    value, gradient = negative_log_posterior(log_parameters, curves)
    numeric = approx_fprime(log_parameters, lambda each: negative_log_posterior(each, curves)[0], 1e-6)
    np.testing.assert_allclose(gradient, numeric, atol=1e-3)
    at = curves.x_TC[curves.trial_N], curves.time_N, curves.trial_N
    covariance = dense_covariance(log_parameters, *at, *at) + (np.exp(log_parameters[-1]) + 1e-6) * np.eye(12)
    means, deviations = prior(2)
    expected = 0.5 * curves.value_N @ np.linalg.solve(covariance, curves.value_N)
    expected += 0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * (((log_parameters - means) / deviations) ** 2).sum()
    assert value == pytest.approx(expected)


def test_a_configuration_becomes_positions_ranks_and_columns():
    encoding = Encoding(
        {
            "lr": [LR], "batch": [CategoricalDistribution([8, 32, 16])], "model": [CategoricalDistribution(["a", "b"])],
            "alpha": [FloatDistribution(0, 1), FloatDistribution(1, 4)],
        },
        conditional=["alpha"],
    )  # fmt: skip
    rows = encoding.rows(
        [{"lr": 1e-2, "batch": 32, "model": "b", "alpha": 2.0}, {"lr": 1e-4, "batch": 16, "model": "a"}]
    )
    assert encoding.parameter_C.tolist() == [0, 1, 2, 2, 3, 3]
    half = math.sqrt(0.5)
    np.testing.assert_allclose(rows, [[0.5, 1.0, 0, half, half, half], [0, 0.5, half, 0, 0, 0]])


def test_values_at_positions_keep_to_bounds_steps_and_types():
    assert value_at(IntDistribution(1, 3), 0.0) == 1 and value_at(IntDistribution(1, 3), 1.0) == 3
    assert isinstance(value_at(IntDistribution(8, 64, log=True), 0.5), int)
    assert value_at(IntDistribution(2, 8, step=3), 0.99) == 8 and value_at(IntDistribution(2, 9, step=3), 1.0) == 8
    assert value_at(FloatDistribution(0, 1, step=0.25), 0.6) == 0.5
    for low, high in ((1e-4, 1e-1), (1e-5, 5e-4), (0.1, 0.7)):
        for is_log in (False, True):
            ends = FloatDistribution(low, high, log=is_log)
            assert (value_at(ends, 0.0), value_at(ends, 1.0)) == (low, high), "as they are written, to the last digit"
    for share in (0.0, 0.3, 1.0):
        assert position(LR, value_at(LR, share)) == pytest.approx(share)


def test_a_neighbor_of_another_branch_draws_what_its_origin_lacks():
    def draw(suggest):
        values = {"model": suggest("model", CategoricalDistribution(["a", "b"]))}
        return {**values, **({"alpha": suggest("alpha", FloatDistribution(0, 1))} if values["model"] == "b" else {})}

    random = np.random.default_rng(1)
    found = [drawn_near(draw, {"model": "a"}, random) for _ in range(200)]
    assert {"a", "b"} == {each["model"] for each in found}
    assert all(("alpha" in each) == (each["model"] == "b") for each in found)
    assert 0 < sum(each["model"] == "b" for each in found) < 60


def trial(number, values, state=PAUSED, until=None, lr=0.1, ends=()):
    points = [(at + 1, value) for at, value in enumerate(values)]
    return Standing(number, {"lr": lr}, points, len(values) if until is None else until, state, ends)


def test_rungs_are_powers_of_the_factor_and_the_end():
    assert rungs(1, 27, 3) == [1, 3, 9, 27]
    assert rungs(1, 52, 3) == [1, 3, 9, 27, 52]
    assert rungs(100, 100, 3) == [100]


def test_asha_promotes_from_the_highest_rung_down_before_it_begins_a_trial():
    asha = Asha(LENGTHS, 3)
    low = [trial(number, [0.1 * number]) for number in range(5)]
    assert asha.decide(low[:2], [], may_begin=True).number is None
    chosen = asha.decide(low[:3], [], may_begin=True)
    assert (chosen.number, chosen.until) == (2, 3)
    high = [trial(number, [0.0, 0.0, 0.1 * number]) for number in range(5, 8)]
    chosen = asha.decide([*low, *high], [], may_begin=True)
    assert (chosen.number, chosen.until) == (7, 9)


def test_asha_ranks_all_trials_of_a_rung_but_continues_only_paused_ones():
    asha = Asha(LENGTHS, 3)
    found = [trial(0, [0.5], RUNNING, 3), trial(1, [math.nan]), trial(2, [0.4]), trial(3, [0.3], FAILED)]
    assert asha.decide(found, [], may_begin=True).number is None
    assert asha.decide([*found, trial(4, [0.1]), trial(5, [0.2])], [], may_begin=True).number == 2


def test_asha_first_brings_a_trial_to_its_first_rung_that_was_paused_before_it():
    # A former command had an earlier rung. Of trials that never came to a rung, none would ever be promoted.
    asha = Asha(replace(LENGTHS, first=3), 3)
    early, ended_fold = trial(1, [0.2]), trial(2, [0.3, 0.3], ends=(2,))
    chosen = asha.decide([trial(0, [0.1], RUNNING, 3), early, ended_fold], [], may_begin=True)
    assert (chosen.number, chosen.until) == (1, 3)
    assert Asha(LENGTHS, 3).decide([early], [], may_begin=True).number is None


def test_the_rest_of_a_budget_goes_to_the_best_trial():
    lengths = Lengths(1, 1, 27, 27, budget=40)
    trials = [trial(0, [0.1] * 3), trial(1, [0.3] * 3), trial(2, [0.2] * 9)]
    # 15 examples are spent and 25 left, so trials 0 and 1 could end, but no further one could begin.
    chosen = Asha(lengths, 4).decide(trials, [], may_begin=True)
    assert (chosen.number, chosen.until) == (1, 27)
    trials[1] = trial(1, [0.3] * 27, ENDED)
    assert Asha(lengths, 4).decide(trials, [], may_begin=True) is None


def test_no_step_spends_what_the_best_trial_needs_to_end():
    lengths = Lengths(1, 1, 27, 27, budget=45)
    # 25 examples are spent and 20 left. The best trial needs 18; the other one could end too, but not after it.
    trials = [trial(0, [0.5] * 9), trial(1, [0.4] * 16)]
    assert [lengths.affords(trials, each, until) for each, until in zip(trials, (27, 17), strict=True)] == [True, True]
    assert not lengths.affords(trials, trials[1], 19)
    # One that runs up to 20 may be the best then, and 7 examples more; 16 of them are left.
    trials[1] = trial(1, [0.4] * 16, RUNNING, until=20)
    assert lengths.left(trials) == 16 and not lengths.affords(trials, trials[0], 10)
    assert not lengths.affords(trials, None, 1)
    # A trial that has ended, failed or was stopped needs nothing, however good it is and however early it ended.
    for state in (ENDED, FAILED, STOPPED):
        over = [trial(0, [0.5] * 9, state), trial(1, [0.4] * 16)]
        assert lengths.affords(over, over[1], 27)
    for state in (FAILED, STOPPED):
        over = [trial(0, [0.9] * 2, state), trial(1, [0.5] * 9), trial(2, [0.4] * 16)]
        # 27 are spent and 18 left, all of which the best trial that can continue needs.
        assert not lengths.affords(over, over[2], 17)
    for seed in range(6):
        found, _ = searched(replace(COARSE, budget=100), crossing, seed=seed, budget=200)
        assert max(found, key=lambda each: each.best).state == ENDED
        assert sum(each.examples for each in found) <= 100


def test_folds_continue_one_by_one_and_the_best_mean_is_finished():
    lengths = Lengths(1, 1, end=12, part=4)
    first, second = trial(0, [0.1, 0.2, 0.3, 0.5], ends=(4,)), trial(1, [0.1, 0.2, 0.3, 0.4], ends=(4,))
    assert lengths.last_steps([first, second]).number == 0
    assert lengths.last_steps([first, second]).until == 5
    # The mean over two folds is worse than the other trial's first fold.
    fallen = Standing(0, {}, [*first.points, (8, 0.35)], 8, PAUSED, (4, 8))
    assert fallen.best == 0.35
    assert lengths.last_steps([fallen, second]).number == 1


def searched(lengths, value, *, seed=0, budget=200, may_begin=lambda count: True, first_runs=FIRST_RUNS):
    """Run a freeze-thaw search over a function of (lr, step); returns its trials and decisions."""
    encoding, draw = Encoding({"lr": [LR]}), lambda suggest: {"lr": suggest("lr", LR)}
    scheduler = FreezeThaw(lengths, encoding, draw, seed, first_runs=first_runs)
    trials, log, number = [], [], None
    while sum(each.examples for each in trials) < budget:
        seen = [replace(each, asks=each.number == number and each.state == PAUSED) for each in trials]
        decision = scheduler.decide(seen, log, may_begin=may_begin(len(trials)))
        if decision is None:
            break
        log.append(decision)
        if decision.number is None:
            trials.append(Standing(len(trials), decision.values, [], decision.until, RUNNING))
        number = len(trials) - 1 if decision.number is None else decision.number
        lr = trials[number].values["lr"]
        ends = range(lengths.least, min(decision.until, lengths.end) + 1, lengths.least)
        points = [(at, value(lr, at)) for at in ends]
        state = ENDED if decision.until >= lengths.end else PAUSED
        trials[number] = Standing(number, {"lr": lr}, points, decision.until, state)
    return trials, log


def test_a_trial_that_trains_is_not_paused_for_one_that_is_hardly_likelier():
    paused = [trial(0, [0.1]), replace(trial(1, [0.2]), asks=True)]
    for ahead, chosen in ((0.5 * TIE, 1), (1.5 * TIE, 0)):
        assert _chosen(paused, np.array([1.0, 0.9]), np.array([0.3 + ahead, 0.3])) == chosen
    # A new trial starts a process in any case, and so does each one if none asks.
    assert _chosen(paused, np.array([0.5, 0.9, 1.0]), np.array([0.2, 0.3, 0.3])) == 2
    assert _chosen([trial(0, [0.1]), trial(1, [0.2])], np.array([1.0, 0.9]), np.array([0.3, 0.3])) == 0


def height(lr, at):
    """Best at lr = 0.01, which is also the slowest."""
    away = (math.log10(lr) + 2) ** 2
    return (1 - 0.2 * away) * (1 - math.exp(-at / (3 + 3 * math.exp(-away))))


def test_freeze_thaw_finds_the_best_height_for_the_price_of_a_few_whole_trials():
    trials, _ = searched(COARSE, height, budget=8 * 27)
    best = max(trials, key=lambda each: each.best)
    assert abs(math.log10(best.values["lr"]) + 2) < 0.35
    assert best.best > 0.95 * height(0.01, 27)
    assert sum(each.examples > 9 for each in trials) <= len(trials) / 2
    assert len(trials) > 12


def crossing(lr, at):
    """Fast at lr = 1, and best in the end at lr = 0.03, which stays at the start for longer."""
    away = math.log10(lr)
    return (1 - 0.3 * (away + 1.5) ** 2) * max(0.0, 1 - math.exp(-(at + 3 * away) / 3))


def test_freeze_thaw_begins_by_ranks_so_that_it_finds_slow_trials_that_end_best():
    best = {
        runs: [max(each.best for each in searched(COARSE, crossing, seed=seed, first_runs=runs, budget=7 * 27)[0])
               for seed in range(10)]
        for runs in (0, FIRST_RUNS)
    }  # fmt: skip
    assert statistics.fmean(best[FIRST_RUNS]) > statistics.fmean(best[0]) + 0.02


def test_ranks_decide_which_trial_continues_until_150_evaluations_were_seen():
    trials, log = searched(LENGTHS, crossing, budget=8 * 27)
    reached: dict[int, int] = {}
    promoted_at, model_at, begun = [], [], 0
    for decision in log:
        seen = sum(reached.values())
        promoted_at += [seen] * (decision.why["rule"] == "promoted")
        model_at += [seen] * (decision.why["rule"] == "model")
        number = begun if decision.number is None else decision.number
        begun += decision.number is None
        reached[number] = min(decision.until, LENGTHS.end)
    # Each trial is scored after every example. The model fills what ranks leave.
    assert sum(reached.values()) == sum(each.examples for each in trials) > 200
    assert min(model_at) < max(promoted_at) < 150 < max(model_at)


def test_freeze_thaw_decides_alike_from_the_same_trials_and_differently_by_seed():
    one, two, other = (searched(COARSE, height, seed=seed, budget=60)[1] for seed in (0, 0, 1))
    assert one == two != other


def log_of(count):
    from nlu.search.schedulers.scheduler import Decision

    return [Decision(1)] * count


def test_running_trials_count_as_if_they_had_reached_their_prediction():
    encoding, draw = Encoding({"lr": [LR]}), lambda suggest: {"lr": suggest("lr", LR)}
    scheduler = FreezeThaw(LENGTHS, encoding, draw, 0, first_runs=0)
    paused = [trial(number, [0.1, 0.2], lr=10 ** -(0.4 * number)) for number in range(9)]
    best = trial(9, [0.3, 0.6], lr=0.01)
    chosen = {scheduler.decide([*paused, best], log_of(count), may_begin=False).number for count in range(8)}
    assert chosen == {9}
    running = Standing(9, best.values, best.points, 4, RUNNING)
    assert scheduler.decide([*paused, running], log_of(0), may_begin=False).number != 9


def test_a_decision_among_many_trials_sees_the_whole_curves_of_the_best_ones_only():
    def trial(number, count, best):
        points = tuple((epoch, best * epoch / count) for epoch in range(1, count + 1))
        return Standing(number, {"x": number / 700}, points, count, PAUSED)

    few = [trial(number, 27, 1 + number) for number in range(100)]
    assert [len(seen) for seen in _seen(few)] == [6] * 100
    many = [trial(number, 27, 1 + number) for number in range(200)]
    # 120 whole trials less would be too many points by 0: 80 * 6 + 120 * 1 = 600.
    assert [len(seen) for seen in _seen(many)] == [1] * 120 + [6] * 80
    assert all(list(seen) == [26] for seen in _seen(many)[:120])
    most = [trial(number, 3, 1 + number) for number in range(700)]
    assert [len(seen) for seen in _seen(most)] == [0] * 100 + [1] * 600


STEPPED = [
    IntDistribution(1, 9), IntDistribution(2, 12, step=5), IntDistribution(1, 64, log=True),
    FloatDistribution(0.0, 1.0, step=0.25),
]  # fmt: skip


@pytest.mark.parametrize("distribution", STEPPED)
def test_a_stepped_value_is_at_its_position_and_each_one_is_drawn_equally_often(distribution):
    step = distribution.step
    values = [distribution.low + at * step for at in range(round((distribution.high - distribution.low) / step) + 1)]
    assert [value_at(distribution, position(distribution, value)) for value in values] == values
    random = np.random.default_rng(0)
    drawn = [drawn_value(distribution, random) for _ in range(4000)]
    for value in (values[0], values[len(values) // 2], values[-1]):
        share = 1 / len(values)
        if distribution.log:
            share = math.log((value + 0.5) / (value - 0.5)) / math.log(64.5 / 0.5)
        assert drawn.count(value) / 4000 == pytest.approx(share, abs=0.03)
