"""Pruners are named, their brackets are those that optuna uses, and their cost is what a simulation finds."""

import random

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.sweeps import pruning

SPEC = {"name": "hyperband", "min_resource": 100, "max_resource": 2700, "reduction_factor": 3, "bootstrap_count": 0}


def test_a_name_or_a_mapping():
    assert pruning.read("none") == ("none", {}) == pruning.read(None)
    assert pruning.read({"name": "median", "n_startup_trials": 2})[1]["n_startup_trials"] == 2
    assert pruning.read({"name": "median", "n_warmup_steps": "2ep"})[1]["n_warmup_steps"] == "2ep"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("medain", "nearest: median"),
        ({"name": "median", "n_startup_trails": 2}, "nearest: n_startup_trials"),
        ("threshold", "needs a bound"),
        ({"n_startup_trials": 3}, "names no pruner; add one of hyperband, .*name: median"),
        (
            {"name": "median", "n_startup_trials": "x"},
            'pruner.n_startup_trials is "x" but must be an integer >= 0;',
        ),
        ({"name": "median", "n_warmup_steps": "3"}, r"pruner.n_warmup_steps is .* write 3st \(steps\)"),
        ({"name": "median", "interval_steps": 0}, "pruner.interval_steps is 0 but must be an integer >= 1 or"),
        ({"name": "wilcoxon", "p_threshold": 7}, "pruner.p_threshold is 7 but must be a number >= 0 and <= 1"),
        ({"name": "threshold", "lower": 2, "upper": 1}, "pruner.lower is 2, more than upper, 1"),
        ({"name": "threshold", "lower": "low"}, 'pruner.lower is "low" but must be a number or null'),
    ],
)
def test_what_cannot_be_is_refused_with_its_key_and_the_nearest(written, said):
    with pytest.raises(UserError, match=said):
        pruning.read(written)


@pytest.mark.parametrize(
    ("low", "high", "factor"), [(100, 2700, 3), (80, 600, 3), (1, 64, 2), (5, 5, 3), (10, 1000, 4)]
)
def test_brackets_are_those_of_the_pruner(low, high, factor):
    spec = {**SPEC, "min_resource": low, "max_resource": high, "reduction_factor": factor}
    pruner = pruning.build(spec)
    pruner._try_initialization(optuna.create_study())
    found = pruning.brackets(spec, 10)
    assert len(found) == pruner._n_brackets
    total = pruner._total_trial_allocation_budget
    assert [bracket.share for bracket in found] == [budget / total for budget in pruner._trial_allocation_budgets]


@pytest.mark.parametrize(("n_trials", "searches", "error"), [(300, 1, 0.1), (24, 20, 0.25)])
def test_the_announced_cost_is_about_that_of_many_and_of_few_trials(n_trials, searches, error):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = random.Random(0)
    seen = 0
    for number in range(searches):
        study = optuna.create_study(study_name=f"cost {number}", direction="maximize", pruner=pruning.build(SPEC))
        for _ in range(n_trials):
            trial, value = study.ask(), rng.random()
            for examples in range(100, 2701, 100):
                seen += 100
                trial.report(value, examples)
                if examples < 2700 and trial.should_prune():
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                    break
            else:
                study.tell(trial, value)
    expected = sum(bracket.share * bracket.cost for bracket in pruning.brackets(SPEC, n_trials)) * n_trials * searches
    assert expected == pytest.approx(seen / 2700, rel=error)


def test_without_rungs_there_are_no_brackets():
    assert pruning.brackets({"name": "median"}, 10) == []
