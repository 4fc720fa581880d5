"""HyperBand deals and judges trials as in its papers, and passes no more of them than it announced."""

import itertools
import math
import random

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.search import pruning
from nlu.search.brackets import Bracket, Rung, bracket_of, brackets, cost
from nlu.search.steps import PART_ENDS, PART_VALUES

SPEC = {"name": "hyperband", "min_resource": 100, "max_resource": 2700, "reduction_factor": 3, "bootstrap_count": 0}
HALVING = {**SPEC, "name": "successive_halving", "min_early_stopping_rate": 0}


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def search(spec: dict, values: list[float], *, name: str = "s", direction: str = "maximize") -> list[int]:
    """Run trials of constant values one after the other; returns the examples that each saw."""
    storage = optuna.storages.InMemoryStorage()
    pruner = pruning.build(spec, storage)
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
    assert search(HALVING, [0.5, 0.4, 0.6]) == [2700, 100, 2700]
    assert search(HALVING, [0.5, 0.4, 0.7, 0.3, 0.2, 0.6])[-1] == 300
    # Three have passed the first rung: of six trials the second best is one too many, of nine it is not.
    assert search(HALVING, [0.5, 0.6, 0.7, 0.3, 0.2, 0.65])[-1] == 100
    assert search(HALVING, [0.5, 0.6, 0.7, 0.3, 0.2, 0.1, 0.1, 0.1, 0.65])[-1] == 300


@pytest.mark.parametrize("sign", [1, -1])
def test_a_rung_judges_the_best_value_so_far_and_not_the_last_one(sign):
    storage = optuna.storages.InMemoryStorage()
    direction = "maximize" if sign == 1 else "minimize"
    study = optuna.create_study(storage=storage, direction=direction, pruner=pruning.build(HALVING, storage))

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
    study = optuna.create_study(storage=storage, direction="maximize", pruner=pruning.build(HALVING, storage))

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


def test_trials_with_other_settings_are_compared_at_equal_examples():
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=pruning.build(HALVING, storage))
    first, second = study.ask(), study.ask()
    first.report(0.9, 100)
    assert not first.should_prune()
    study.pruner = pruning.build({**HALVING, "min_resource": 300}, storage)
    second.report(0.8, 300)
    assert not second.should_prune()


def test_brackets_judge_their_trials_apart():
    dealt = [bracket_of(brackets(SPEC), "s", number).number for number in range(12)]
    seen = search(SPEC, [1 - number / 100 for number in range(12)])
    firsts = {bracket: dealt.index(bracket) for bracket in set(dealt)}
    assert len(firsts) > 2 and all(seen[first] == 2700 for first in firsts.values())
    assert all(seen[number] < 2700 for number in range(12) if number not in firsts.values() and dealt[number] < 3)


def test_nan_and_the_first_trials_of_a_bootstrap_do_not_pass():
    assert search(HALVING, [math.nan, 0.5]) == [100, 2700]
    # Of six that get better and better, the third is the first to come to the second rung, the fifth to the third.
    assert search({**HALVING, "bootstrap_count": 2}, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]) == [100, 100, 300, 300, 900, 900]


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=40), st.integers(2, 4))
def test_besides_each_new_best_at_most_the_share_and_one_more_pass(values, factor):
    seen = search({**HALVING, "reduction_factor": factor}, values)
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
        rung = Rung()
        for value in order:
            passes = rung.lets_pass(value, 3, 0)
            rung.add(value, passes)
            passed += passes
    assert passed / math.factorial(n_trials) == pytest.approx(PASSED[n_trials], abs=1e-12)


@pytest.mark.parametrize("n_trials", PASSED)
def test_the_announced_cost_of_one_rung_is_that_by_hand(n_trials):
    # A rung at a third: who does not pass costs 1/3 of a full run, who does a whole one.
    by_hand = 1 / 3 + 2 / 3 * PASSED[n_trials] / n_trials
    assert cost(Bracket(0, (900,), 1), n_trials, HALVING) == pytest.approx(by_hand, abs=0.02)


def test_the_cost_of_a_search_equals_the_announced_one():
    # By hand as above: of 6 trials in the bracket of one rung, over 60 searches.
    rng = random.Random(0)
    spec = {**HALVING, "min_resource": 900}
    seen = sum(sum(search(spec, [rng.random() for _ in range(6)], name=f"cost {number}")) for number in range(60))
    assert seen / 60 / 2700 / 6 == pytest.approx(1 / 3 + 2 / 3 * PASSED[6] / 6, abs=0.05)


def test_an_evaluation_beyond_several_rungs_is_judged_once():
    def passed(spec):
        rng, storage = random.Random(0), optuna.storages.InMemoryStorage()
        study = optuna.create_study(storage=storage, direction="maximize", pruner=pruning.build(spec, storage))
        found = []
        for _ in range(300):
            trial = study.ask()
            trial.report(rng.random(), 900)
            found.append(not trial.should_prune())
        return found

    assert passed(HALVING) == passed({**HALVING, "min_resource": 900})
    assert 80 <= sum(passed(HALVING)) <= 101, "a third, not a third of a third of a third"


def test_the_end_of_a_run_is_never_a_rung_despite_rounding():
    def rungs(low: int, high: int) -> list[tuple[int, ...]]:
        spec = {"name": "hyperband", "min_resource": low, "max_resource": high, "reduction_factor": 3}
        return [bracket.rungs for bracket in brackets({**spec, "bootstrap_count": 0})]

    assert rungs(1, 27) == [(1, 3, 9), (3, 9), (9,), ()]
    # A third of 100 is 33, and three times that would be 99.
    assert rungs(33, 100) == [(33,), ()]
    single = {**HALVING, "min_resource": 100, "max_resource": 400, "reduction_factor": 2, "min_early_stopping_rate": 1}
    assert [bracket.rungs for bracket in brackets(single)] == [(200,)]
