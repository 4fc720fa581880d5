"""HyperBand deals and judges trials as in its papers, and passes no more of them than it announced."""

import math
import random

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.sweeps import pruning
from nlu.sweeps.brackets import bracket_of, brackets, cost

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
def test_brackets_and_who_is_dealt_to_them_are_those_of_optuna(low, high, factor):
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


def test_less_is_better_where_it_is_minimized():
    assert search(HALVING, [0.5, 0.6, 0.4], direction="minimize") == [2700, 100, 2700]
    assert search(HALVING, [0.7, 0.6, 0.5, 0.9, 0.9, 0.55], direction="minimize")[-1] == 100


def test_of_equal_trials_no_more_pass_than_of_others():
    assert sum(examples > 100 for examples in search(HALVING, [0.69] * 12)) == 12 // 3 + 1


def test_where_the_settings_changed_trials_are_compared_at_the_same_examples():
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, direction="maximize", pruner=pruning.build(HALVING, storage))
    first, second = study.ask(), study.ask()
    first.report(0.9, 100)
    assert not first.should_prune()
    study.pruner = pruning.build({**HALVING, "min_resource": 300}, storage)
    second.report(0.8, 300)
    assert not second.should_prune()


def test_a_later_first_rung():
    assert search({**HALVING, "min_early_stopping_rate": 1}, [0.5, 0.4]) == [2700, 300]


def test_brackets_judge_their_trials_apart():
    dealt = [bracket_of(brackets(SPEC), "s", number).number for number in range(12)]
    seen = search(SPEC, [1 - number / 100 for number in range(12)])
    firsts = {bracket: dealt.index(bracket) for bracket in set(dealt)}
    assert len(firsts) > 2 and all(seen[first] == 2700 for first in firsts.values())
    assert all(seen[number] < 2700 for number in range(12) if number not in firsts.values() and dealt[number] < 3)


def test_a_value_that_is_no_number_and_the_first_of_a_bootstrap_do_not_pass():
    assert search(HALVING, [math.nan, 0.5]) == [100, 2700]
    # Of six that get better and better, the third is the first to come to the second rung, the fifth to the third.
    assert search({**HALVING, "bootstrap_count": 2}, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]) == [100, 100, 300, 300, 900, 900]


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=40), st.integers(2, 4))
def test_no_more_than_their_share_and_one_pass_but_for_the_best_so_far(values, factor):
    seen = search({**HALVING, "reduction_factor": factor}, values)
    passed = 0
    for number, (value, examples) in enumerate(zip(values, seen, strict=True)):
        is_best = not number or value > max(values[:number])
        assert examples > 100 or not is_best
        if examples > 100:
            assert is_best or passed <= (number + 1) // factor
            passed += 1


def test_of_trials_that_get_better_and_better_few_more_pass_than_announced_unlike_with_optunas_pruner():
    rng = random.Random(0)
    values = [number / 200 + rng.gauss(0, 0.2) for number in range(100)]
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.SuccessiveHalvingPruner(100, 3, 0))
    theirs = 0
    for value in values:
        trial = study.ask()
        trial.report(value, 100)
        theirs += not trial.should_prune()
    ours = sum(examples > 100 for examples in search(HALVING, values))
    assert ours <= 40 < theirs


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        HALVING,
        {**HALVING, "bootstrap_count": 6},
        {**HALVING, "max_resource": 900, "reduction_factor": 2},
        {**SPEC, "reduction_factor": 5},
    ],
)
@pytest.mark.parametrize(("n_trials", "searches"), [(200, 3), (24, 40)])
def test_trials_in_no_order_cost_what_is_announced(spec, n_trials, searches):
    rng = random.Random(0)
    seen = 0
    for number in range(searches):
        values = [rng.random() for _ in range(n_trials)]
        seen += sum(min(examples, spec["max_resource"]) for examples in search(spec, values, name=f"cost {number}"))
    found = brackets(spec)
    dealt = [n_trials * bracket.budget / sum(each.budget for each in found) for bracket in found]
    expected = sum(count * cost(bracket, count, spec) for bracket, count in zip(found, dealt, strict=True))
    assert expected * searches == pytest.approx(seen / spec["max_resource"], rel=0.1)


def test_brackets_are_counted_exactly():
    assert len(brackets({**SPEC, "min_resource": 1, "max_resource": 243})) == 6


def test_without_rungs_there_are_no_brackets():
    assert brackets({"name": "median"}) == []
