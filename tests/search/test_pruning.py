"""Pruners are named, and what they cannot do is refused."""

import math
import random

import optuna
import pytest

from nlu.config.errors import UserError
from nlu.search import pruning


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("medain", "nearest: median"),
        ({"name": "median", "n_startup_trails": 2}, "nearest: n_startup_trials"),
        ("threshold", "needs a bound"),
        ({"n_startup_trials": 3}, "which names no pruner; valid: asha, .*name: median"),
        (
            {"name": "median", "n_startup_trials": "x"},
            'pruner.n_startup_trials is "x" but must be an integer >= 0;',
        ),
        ({"name": "median", "n_warmup_steps": "3"}, r"pruner.n_warmup_steps is .* write 3st \(steps\)"),
        ({"name": "median", "interval_steps": 0}, "pruner.interval_steps is 0 but must be an integer >= 1 or"),
        ({"name": "threshold", "lower": 2, "upper": 1}, "pruner.lower is 2, more than upper, 1"),
        ({"name": "threshold", "lower": "low"}, 'pruner.lower is "low" but must be a number or null'),
    ],
)
def test_a_wrong_pruner_is_refused_with_its_key_and_the_nearest(written, said):
    with pytest.raises(UserError, match=said):
        pruning.read(written)


MEDIAN = {
    "name": "median", "n_startup_trials": 2, "n_warmup_steps": 0, "interval_steps": 1, "n_min_trials": 1,
    "eval_interval": 100,
}  # fmt: skip
OFFERED = {
    "none": {"name": "none"},
    "median": MEDIAN,
    "threshold": {"name": "threshold", "lower": 0.35, "upper": None, "n_warmup_steps": 0, "interval_steps": 1},
    "successive_halving": {
        "name": "successive_halving", "min_resource": 100, "max_resource": 400, "reduction_factor": 2,
        "min_early_stopping_rate": 0, "bootstrap_count": 0,
    },
    "hyperband": {
        "name": "hyperband", "min_resource": 100, "max_resource": 190, "reduction_factor": 2, "bootstrap_count": 0,
    },
    "asha": {"name": "asha", "min_resource": 100, "max_resource": 400, "reduction_factor": 2},
    "freeze_thaw": {"name": "freeze_thaw", "min_resource": 100, "max_resource": 400, "reduction_factor": 2},
}  # fmt: skip


def ends(spec: dict, curves: list[dict[int, float]], direction: str = "maximize") -> list[int]:
    """Run trials that report these values one after the other; returns at how many examples each stopped."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.InMemoryStorage()
    pruner = pruning.build(spec, storage)
    study = optuna.create_study(study_name="s", storage=storage, direction=direction, pruner=pruner)
    found = []
    for curve in curves:
        trial = study.ask()
        for examples, value in curve.items():
            trial.report(value, examples)
            if examples < max(curve) and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, value)
        found.append(examples)
    return found


def test_each_pruner_stops_what_its_rule_says():
    assert set(OFFERED) == set(pruning.PARAMETERS)
    values = [0.5, 0.7, 0.3, 0.6, 0.65, 0.8]
    curves = [dict.fromkeys((100, 200, 300, 400), value) for value in values]
    assert {name: ends(spec, curves) for name, spec in OFFERED.items()} == {
        "none": [400] * 6,
        # The median of 0.5 and 0.7 is 0.6: 0.3 is below, 0.6 is not; then of 0.5, 0.6, 0.7 and of 0.5, 0.6, 0.65, 0.7.
        "median": [400, 400, 100, 400, 400, 400],
        "threshold": [400, 400, 100, 400, 400, 400],
        # One in two: of four the second best does, of five the third.
        "successive_halving": [400, 400, 100, 200, 100, 400],
        # One bracket with one rung, at 100: three have passed when the fifth comes, one more than half of five.
        "hyperband": [400, 400, 100, 400, 100, 400],
        # The search pauses their trials, and stops none.
        "asha": [400] * 6,
        "freeze_thaw": [400] * 6,
    }
    low = [0.5, 0.7, 0.45, 0.62, 0.55]
    stopped = ends(MEDIAN, [dict.fromkeys((100, 200), value) for value in low])
    # Medians of the complete: 0.6; 0.6; 0.62 of 0.5, 0.7, 0.62.
    assert stopped == [200, 200, 100, 200, 100]


def test_the_median_is_optunas_where_all_report_at_the_same_examples():
    rng = random.Random(0)
    curves = [{100 * step: rng.random() for step in range(1, 6)} for _ in range(40)]
    parameters = {"n_startup_trials": 3, "n_warmup_steps": 150, "interval_steps": 200, "n_min_trials": 2}
    study = optuna.create_study(direction="minimize", pruner=optuna.pruners.MedianPruner(**parameters))
    theirs = []
    for curve in curves:
        trial = study.ask()
        for examples, value in curve.items():
            trial.report(value, examples)
            if examples < 500 and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, value)
        theirs.append(examples)
    assert ends({**MEDIAN, **parameters}, curves, "minimize") == theirs
    assert 5 < sum(examples < 500 for examples in theirs) < 35


def test_trials_with_other_batch_sizes_are_compared_at_the_planned_examples():
    # Every half epoch of 1,000 examples, in steps of 10, 48 and 64 examples.
    tens, forties = {500: 0.5, 1000: 0.6, 1500: 0.7}, {528: 0.7, 1008: 0.8, 1512: 0.9}
    bad = {512: 0.1, 1024: 0.2, 1536: 0.3}
    assert ends({**MEDIAN, "eval_interval": 500}, [tens, forties, bad])[-1] == 512
    # After ten intervals one that reaches them a little earlier still meets the others.
    late = [{5040: value, 6000: value} for value in (0.5, 0.7)]
    assert ends({**MEDIAN, "eval_interval": 504}, [*late, {5000: 0.1, 6000: 0.1}])[-1] == 5000
    assert ends({**MEDIAN, "eval_interval": 1}, [tens, forties, bad])[-1] == 1536, "none has a value at 512"


def test_a_median_is_of_numbers_and_a_trial_without_one_stops():
    flat = [dict.fromkeys((100, 200), value) for value in (0.5, math.nan, 0.4)]
    spec = {**MEDIAN, "n_startup_trials": 1}
    assert ends(spec, flat) == [200, 100, 100]
    assert ends({**spec, "n_min_trials": 2}, [flat[0], flat[2]]) == [200, 200]
    assert ends({**spec, "n_warmup_steps": 150}, [{**flat[0], 300: 0.5}, {**flat[2], 300: 0.4}]) == [300, 200]
