"""HyperBand deals and judges trials as in its papers, and passes no more of them than it announced."""

import itertools
import math
import random
import re

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.search.pruners import (
    NAMES,
    HalvingPruner,
    announced,
    bracket_of,
    brackets,
    expected_examples,
    passes,
    problem_of,
)
from nlu.search.trial_steps import PART_ENDS, PART_VALUES

SPEC = {"name": "hyperband", "min_resource": 100, "max_resource": 2700, "reduction_factor": 3}


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def halving(spec: dict, storage) -> HalvingPruner:
    """Return a pruner that deals all trials to the first bracket."""
    pruner = HalvingPruner(spec, storage)
    pruner._brackets = pruner._brackets[:1]
    return pruner


def search(make, spec: dict, values: list[float], *, name: str = "s", direction: str = "maximize") -> list[int]:
    """Run trials of constant values one after the other; returns the examples that each saw."""
    storage = optuna.storages.InMemoryStorage()
    pruner = make(spec, storage)
    study = optuna.create_study(study_name=name, storage=storage, direction=direction, pruner=pruner)
    seen = []
    for value in values:
        trial = study.ask()
        for examples in range(100, 2701, 100):
            trial.report(value, examples)
            if examples < 2700 and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, value)
        seen.append(examples)
    return seen


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("hyprband", "which names no pruner; nearest: hyperband"),
        (["asha"], "which names no pruner; nearest: asha"),
        (
            "median",
            "hydra.sweeper.pruner is median, which there is no more; set hydra.sweeper.pruner=hyperband, or asha",
        ),
        ({"name": "asha"}, "which names no pruner; valid: asha"),
    ],
)
def test_a_wrong_pruner_is_answered_with_what_to_write(written, said):
    assert re.search(said, problem_of(written))
    assert [problem_of(name) for name in (None, *NAMES)] == [None] * 5


@pytest.mark.parametrize("name", ["none", "asha", "freeze_thaw"])
def test_only_hyperband_stops_trials(name):
    values = [0.5, 0.7, 0.3]
    assert search(HalvingPruner, {**SPEC, "name": name}, values) == [2700] * 3
    assert search(HalvingPruner, {"name": "none"}, values) == search(HalvingPruner, {}, values) == [2700] * 3


@pytest.mark.parametrize(
    ("low", "high", "factor"), [(100, 2700, 3), (80, 600, 3), (1, 64, 2), (5, 5, 3), (10, 1000, 4)]
)
def test_brackets_and_their_trials_equal_those_of_optuna(low, high, factor):
    theirs = optuna.pruners.HyperbandPruner(low, high, factor)
    study = optuna.create_study(study_name="dealt", pruner=theirs)
    theirs._try_initialization(study)
    ours = brackets({**SPEC, "min_resource": low, "max_resource": high, "reduction_factor": factor})
    assert [bracket.budget for bracket in ours] == theirs._trial_allocation_budgets
    for _ in range(50):
        study.ask()
    for trial in study.get_trials():
        assert bracket_of(ours, "dealt", trial.number).number == theirs._get_bracket_id(study, trial)


def test_the_best_so_far_passes_and_so_does_the_best_third_while_few_have_passed():
    assert search(halving, SPEC, [0.5, 0.4, 0.6]) == [2700, 100, 2700]
    assert search(halving, SPEC, [0.5, 0.4, 0.7, 0.3, 0.2, 0.6])[-1] == 300
    # Three have passed the first rung: of six trials the second best is one too many, of nine it is not.
    assert search(halving, SPEC, [0.5, 0.6, 0.7, 0.3, 0.2, 0.65])[-1] == 100
    assert search(halving, SPEC, [0.5, 0.6, 0.7, 0.3, 0.2, 0.1, 0.1, 0.1, 0.65])[-1] == 300


@pytest.mark.parametrize("sign", [1, -1])
def test_a_rung_judges_the_best_value_so_far_and_not_the_last_one(sign):
    storage = optuna.storages.InMemoryStorage()
    direction = "maximize" if sign == 1 else "minimize"
    study = optuna.create_study(storage=storage, direction=direction, pruner=halving(SPEC, storage))

    def is_pruned(reports: dict[int, float]) -> bool:
        trial = study.ask()
        for examples, value in reports.items():
            trial.report(sign * value, examples)
        return trial.should_prune()

    # Best values 0.6, 0.7, 0.5 and 0.8 at the first rung: each second one is a new best. By the last ones, 0.6, 0.5,
    # 0.4 and not a number, only the first would be.
    curves = [{100: 0.6}, {50: 0.7, 100: 0.5}, {50: 0.5, 100: 0.4}, {50: 0.8, 100: math.nan}]
    assert [is_pruned(curve) for curve in curves] == [False, False, True, False]


def test_with_folds_a_rung_judges_the_mean_over_those_that_have_ended():
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=halving(SPEC, storage))

    def is_pruned(reports: dict[int, float], ends: list[int], means: dict[str, float]) -> bool:
        trial = study.ask()
        for examples, value in reports.items():
            trial.report(value, examples)
        trial.set_user_attr(PART_ENDS, ends)
        trial.set_user_attr(PART_VALUES, means)
        return trial.should_prune()

    # The first fold ends at 80, with 0.65, 0.7 and 0.6 as its best values; at the rung the second one has just begun.
    assert not is_pruned({40: 0.65, 80: 0.6}, [80], {"80": 0.65})
    assert not is_pruned({40: 0.7, 80: 0.6, 120: 0.4}, [80], {"80": 0.7})
    assert is_pruned({40: 0.6, 80: 0.6, 120: 0.66}, [80], {"80": 0.6})
    # After two folds it is the mean over both.
    assert not is_pruned({40: 0.6, 100: 0.9}, [40, 90], {"40": 0.6, "90": 0.75})
    assert is_pruned({40: 0.9, 100: 0.5}, [40, 90], {"40": 0.9, "90": 0.7})


def test_a_trial_that_breaks_a_constraint_is_no_measure_for_others():
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=halving(SPEC, storage))
    for value, violation in ((0.9, 0.5), (0.5, -0.5), (0.6, -0.5), (0.55, -0.5)):
        trial = study.ask()
        trial.report(value, 100)
        assert trial.should_prune() == (value == 0.55)
        storage.set_trial_system_attr(trial._trial_id, "constraints:latency_ms<=5", violation)


def test_trials_with_other_settings_are_compared_at_equal_examples():
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=halving(SPEC, storage))
    first, second = study.ask(), study.ask()
    first.report(0.9, 100)
    assert not first.should_prune()
    study.pruner = halving({**SPEC, "min_resource": 300}, storage)
    second.report(0.8, 300)
    assert not second.should_prune()


def test_brackets_judge_their_trials_apart():
    dealt = [bracket_of(brackets(SPEC), "s", number).number for number in range(12)]
    seen = search(HalvingPruner, SPEC, [1 - number / 100 for number in range(12)])
    firsts = {bracket: dealt.index(bracket) for bracket in set(dealt)}
    assert len(firsts) > 2 and all(seen[first] == 2700 for first in firsts.values())
    assert all(seen[number] < 2700 for number in range(12) if number not in firsts.values() and dealt[number] < 3)


def test_a_trial_without_a_number_does_not_pass():
    assert search(halving, SPEC, [math.nan, 0.5, math.nan]) == [100, 2700, 100]


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=40), st.integers(2, 4))
def test_besides_each_new_best_at_most_the_share_and_one_more_pass(values, factor):
    seen = search(halving, {**SPEC, "reduction_factor": factor}, values)
    passed = 0
    for number, (value, examples) in enumerate(zip(values, seen, strict=True)):
        is_best = not number or value > max(values[:number])
        assert examples > 100 or not is_best
        if examples > 100:
            assert is_best or passed <= (number + 1) // factor
            passed += 1


# Of n trials in no order the k-th is the best so far with probability 1 / k, among the best two with 2 / k. With a
# factor of 3 trials 1 to 5 pass as the best so far: 1, 1/2, 1/3, 1/4, 1/5. The sixth passes among the best two if no
# more than two of the five have passed, as in 24 + 50 of 120 orders (as many as have one and two records), else as the
# best: (74 * 2 + 46 * 1) / 720 = 97/360. Sums of these, over all orders of n trials:
PASSED = {1: 1, 2: 3 / 2, 3: 11 / 6, 5: 137 / 60, 6: 137 / 60 + 97 / 360}


@pytest.mark.parametrize("n_trials", PASSED)
def test_the_trials_that_pass_a_rung_over_all_orders_match_a_count_by_hand(n_trials):
    passed = 0
    for order in itertools.permutations(range(n_trials)):
        found: list[bool] = []
        for place, value in enumerate(order):
            found.append(passes(value, order[:place], sum(found), 3))
        passed += sum(found)
    assert passed / math.factorial(n_trials) == pytest.approx(PASSED[n_trials], abs=1e-12)


@pytest.mark.parametrize("n_trials", PASSED)
def test_the_announced_cost_of_one_rung_is_about_that_by_hand(n_trials):
    # A rung at a third: who does not pass costs 900 examples, who does 2,700. Up to five trials the count is exact.
    (bracket, _) = brackets({**SPEC, "min_resource": 900})
    by_hand = 900 * n_trials + 1800 * PASSED[n_trials]
    assert expected_examples(bracket, n_trials, SPEC) == pytest.approx(by_hand, rel=1e-12 if n_trials < 6 else 0.03)
    # A single trial is the best so far, so that half of one has half of a whole run.
    assert expected_examples(bracket, 0.5, SPEC) == 1350


@pytest.mark.parametrize("n_trials", [9, 30, 60])
def test_searches_cost_about_what_they_announced(n_trials):
    rng, seen, times = random.Random(0), 0, 600 // n_trials
    for number in range(times):
        values = [rng.random() for _ in range(n_trials)]
        seen += sum(search(HalvingPruner, SPEC, values, name=f"cost {number}"))
    told = float(re.search(r"cost: ([\d.]+) full runs instead of", announced(SPEC, n_trials)[-1])[1])
    assert seen / times / 2700 == pytest.approx(told, rel=0.1)


def test_an_evaluation_beyond_several_rungs_is_judged_once():
    def passed(spec):
        rng, storage = random.Random(0), optuna.storages.InMemoryStorage()
        study = optuna.create_study(storage=storage, direction="maximize", pruner=halving(spec, storage))
        found = []
        for _ in range(300):
            trial = study.ask()
            trial.report(rng.random(), 900)
            found.append(not trial.should_prune())
        return found

    assert passed(SPEC) == passed({**SPEC, "min_resource": 900})
    assert 80 <= sum(passed(SPEC)) <= 101, "a third, not a third of a third of a third"


def test_the_end_of_a_run_is_never_a_rung_despite_rounding():
    def rungs(low: int, high: int) -> list[tuple[int, ...]]:
        spec = {"name": "hyperband", "min_resource": low, "max_resource": high, "reduction_factor": 3}
        return [bracket.rungs for bracket in brackets(spec)]

    assert rungs(1, 27) == [(1, 3, 9), (3, 9), (9,), ()]
    assert rungs(1, 2) == [(1,)]
    # A third of 100 is 33, and three times that would be 99.
    assert rungs(33, 100) == [(33,), ()]
