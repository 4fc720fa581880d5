"""A plateau is seen in the values of trials, of which those with folds are means."""

from types import SimpleNamespace

import optuna
from hydra_plugins.hyperband_sweeper._limits import Limits
from optuna.trial import TrialState, create_trial

from nlu.sweeps.goals import NO_GOALS
from nlu.sweeps.steps import PART_ENDS, PART_VALUES


def plan_of(study):
    return SimpleNamespace(
        settings={"max_hours": None, "until_plateau": 2.0}, study=study, direction="maximize", goals=NO_GOALS,
        spec={"name": "asha", "max_resource": 300},
    )  # fmt: skip


def of_folds(reports, ends=(), means=(), value=None):
    """A trial of three folds of 100 examples each."""
    attributes = {PART_ENDS: list(ends), PART_VALUES: dict(zip(map(str, ends), means, strict=True))} if ends else {}
    state = TrialState.RUNNING if value is None else TrialState.COMPLETE
    return create_trial(state=state, value=value, intermediate_values=reports, user_attrs=attributes)


LUCKY = of_folds({50: 0.8, 100: 0.9, 150: 0.95, 200: 0.7, 300: 0.6}, [100, 200], [0.9, 0.7], 0.6)
BETTER = of_folds({100: 0.7, 200: 0.7, 300: 0.7}, [100, 200], [0.7, 0.72], 0.71)
WORSE = of_folds({100: 0.5, 200: 0.5, 300: 0.5}, [100, 200], [0.5, 0.5], 0.5)


def test_a_better_mean_over_folds_is_progress_though_a_single_fold_was_better():
    limits = Limits(plan_of(optuna.create_study(direction="maximize")))
    assert limits.reached([LUCKY]) is None
    assert limits.reached([LUCKY, WORSE]) is None
    assert limits.reached([LUCKY, WORSE, BETTER]) is None, "0.71 after 0.6"
    assert limits.reached([LUCKY, WORSE, BETTER, WORSE]) is None
    assert "no better value in the examples of 2 trials" in limits.reached([LUCKY, WORSE, BETTER, WORSE, WORSE])


def test_a_single_report_within_a_later_fold_is_no_progress():
    limits = Limits(plan_of(optuna.create_study(direction="maximize")))
    assert limits.reached([BETTER]) is None
    assert limits.reached([BETTER, WORSE]) is None
    # The mean of one fold that has ended and one evaluation of the next.
    passing = of_folds({100: 0.6, 150: 0.99}, [100], [0.6])
    assert limits.reached([BETTER, WORSE, WORSE, passing]) is not None


def test_the_best_values_are_known_again_after_a_kill():
    study = optuna.create_study(direction="maximize")
    assert Limits(plan_of(study)).reached([LUCKY]) is None
    assert Limits(plan_of(study)).reached([LUCKY, WORSE, WORSE]) is not None
