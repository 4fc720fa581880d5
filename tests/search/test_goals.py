"""Objectives and constraints: how they are written, which trials are on the front, and what samplers see of them."""

from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from nlu.config.errors import UserError
from nlu.search.closing import freed
from nlu.search.goals import (
    GOALS,
    MEASURED,
    Constraint,
    Goals,
    best_trials,
    is_infeasible,
    quantities_of,
    read_goals,
)
from nlu.search.schedulers.scheduler import ENDED, FAILED
from nlu.search.summary import read_summary
from nlu.search.trial_steps import VALUES, standings

METRICS = {"accuracy": True, "loss": False}


def read(objectives: list[object] | None, constraints: list[object] | None) -> Goals:
    return read_goals(objectives, constraints, "accuracy", METRICS)


def test_objectives_have_the_direction_of_what_they_name() -> None:
    found = read(["accuracy", "latency_ms", "loss", "loss"], None)
    assert found.objectives == {"latency_ms": False, "loss": False}, "the metric is there anyway"


@pytest.mark.parametrize(
    ("objectives", "constraints", "said"),
    [
        (["latency"], None, "objectives[0] is latency, which is neither measured nor a metric of the dev set that all "
         "trials have; nearest: latency_ms"),
        (None, ["latency_ms=5"], "is 'latency_ms=5', but must be NAME<=NUMBER or NAME>=NUMBER; write it with quotes, "
         "such as 'hydra.sweeper.constraints=[\"latency_ms<=5\",\"parameters<=10e6\"]'"),
        (None, ["latency_ms<5"], "is 'latency_ms<5', but must be NAME<=NUMBER"),
        (None, ["latency_ms<=nan"], "but must be NAME<=NUMBER"),
        (None, [5], "constraints[0] is 5, but must be"),
        (None, ["params<=5"], "is 'params<=5' about params, which is neither measured nor a metric"),
    ],
)  # fmt: skip
def test_a_wrong_goal_is_refused_with_value_rule_and_remedy(
    objectives: list[object] | None, constraints: list[object] | None, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        read(objectives, constraints)
    assert said in str(refused.value)


def test_a_violation_is_a_share_of_the_bound() -> None:
    assert Constraint("latency_ms", "<=", 5.0).violation(7.5) == 0.5
    assert Constraint("accuracy", ">=", 0.8).violation(0.6) == pytest.approx(0.25)
    assert Constraint("latency_ms", "<=", 5.0).violation(5.0) == 0.0
    assert Constraint("mcc", ">=", 0.0).violation(-0.25) == 0.25


def test_quantities_come_from_what_was_measured_and_from_the_scores_of_the_dev_set() -> None:
    result: dict[str, Any] = {
        "pruned": False, "best": {"set": "dev"}, "metrics": {"dev": {"f1": 0.5}, "test": {"mcc": 1.0}},
        MEASURED: {"latency_ms": 2},
    }  # fmt: skip
    found, lacking = quantities_of(result, ["latency_ms", "f1", "mcc"])
    assert found == {"latency_ms": 2.0, "f1": 0.5} and lacking == ["mcc is None"]
    assert quantities_of({**result, "pruned": True}, ["latency_ms", "f1", "mcc"]) == ({"latency_ms": 2.0}, [])


def study_with(goals: Goals, rows: list[tuple[float, float, str]]) -> optuna.Study:
    """A study of trials with these values, latencies and states; x is the latency."""
    study = optuna.create_study(directions=["maximize", *goals.directions])
    study.set_user_attr(GOALS, goals.to_json())
    for value, latency, state in rows:
        measured = {"latency_ms": latency}
        values = [value, *(latency for _ in goals.objectives)] if state == "COMPLETE" else None
        study.add_trial(
            create_trial(
                state=TrialState[state], values=values, params={"x": latency},
                distributions={"x": FloatDistribution(0, 10)}, intermediate_values={100: value},
                user_attrs={MEASURED: measured, VALUES: {"x": latency}},
                system_attrs={f"constraints:{name}": by for name, by in goals.violations(measured).items()},
            )
        )  # fmt: skip
    return study


ROWS = [
    (0.9, 8.0, "COMPLETE"), (0.8, 4.0, "COMPLETE"), (0.7, 5.0, "COMPLETE"), (0.6, 1.0, "COMPLETE"),
    (0.85, 3.0, "PRUNED"), (0.5, 0.5, "COMPLETE"),
]  # fmt: skip


def test_the_best_trial_keeps_all_constraints_here_and_for_optuna() -> None:
    study = study_with(Goals({}, [Constraint("latency_ms", "<=", 5)]), ROWS)
    summary = read_summary(study)
    assert summary.best == [study.best_trial.number] == [1]
    assert [trial.number for trial in summary.trials if trial.is_feasible is False] == [0]
    assert [trial.number for trial in study.get_trials() if is_infeasible(trial)] == [0]


def test_trials_of_the_front_are_complete_and_within_the_constraints() -> None:
    goals = Goals({"latency_ms": False}, [Constraint("latency_ms", "<=", 5)])
    study = study_with(goals, ROWS)
    assert [trial.number for trial in best_trials(study)] == [1, 3, 5] == read_summary(study).best
    assert [trial.number for trial in read_summary(study).ranked] == [1, 3, 5, 2, 0, 4], "the front before the others"
    kept = freed(study)
    assert [number for number, keeps in kept.items() if keeps] == [1, 3, 5]


def test_for_schedulers_an_infeasible_trial_has_failed_and_has_cost_its_examples() -> None:
    study = study_with(Goals({}, [Constraint("latency_ms", "<=", 5)]), ROWS)
    found = standings(study.get_trials(), maximize=True)
    assert [trial.state for trial in found[:2]] == [FAILED, ENDED]
    assert found[0].best == -np.inf and found[0].examples == 100 and found[1].best == 0.8
