"""The steps of trials in the storage: how far each may train, whether it is paused, and what the scheduler decided.

A job asks after an evaluation whether its trial is paused, and waits for the answer. Only the search decides. Each
decision is written before it takes effect, in one attribute of the trial that gets the step, so a search that was
killed finds all its decisions and makes the next one from the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nlu.search.goals import is_infeasible
from nlu.search.schedulers.scheduler import ENDED, FAILED, PAUSED, RUNNING, STOPPED, Decision, Standing

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STEP = "step_"
"""system attribute of a trial, with the number of the decision: `until`, `why`, and whether the search `answers` while
the job waits"""
PAUSE = "pause_"
"""system attribute of a trial, with the number of decisions so far: after how many examples (`at`) the search paused
it; a later step continues it"""
ASKS = "asks"
"""user attribute of a trial: the examples after which its job waits for a decision"""
PART_ENDS = "part_ends"
"""user attribute of a trial: the examples at which its folds and seeds have ended"""
PART_VALUES = "part_values"
"""user attribute of a trial: at each of `part_ends`, the mean of the best values of the folds and seeds that have ended
(None if it is not a number)"""
VALUES = "values"
"""user attribute of a trial: its parameters, once all are drawn"""
FIXED = "fixed_params"
"""system attribute of a trial: the parameters that it is given instead of drawn; Optuna knows it too"""


def step_of(decision: Decision, number: int, *, answers: bool) -> tuple[str, dict[str, Any]]:
    """Return name and value of the attribute for a decision, the `number`-th of the search."""
    return f"{STEP}{number:05d}", {"until": decision.until, "why": dict(decision.why), "answers": answers}


def steps_of(trial: FrozenTrial) -> list[tuple[int, dict[str, Any]]]:
    """Return all steps of a trial in order, each with the number of its decision."""
    return _numbered(trial, STEP)


def pause_of(at: int, number: int) -> tuple[str, dict[str, Any]]:
    """Return name and value of the attribute of a pause, after `number` decisions in all."""
    return f"{PAUSE}{number:05d}", {"at": at}


def pauses_of(trial: FrozenTrial) -> list[tuple[int, dict[str, Any]]]:
    """Return the pauses of a trial in order, each with the number of decisions before it."""
    return _numbered(trial, PAUSE)


def _numbered(trial: FrozenTrial, prefix: str) -> list[tuple[int, dict[str, Any]]]:
    # As texts, the numbers from 100000 on would precede 99999.
    found = (
        (int(name.removeprefix(prefix)), what) for name, what in trial.system_attrs.items() if name.startswith(prefix)
    )
    return sorted(found, key=lambda each: each[0])


def until_of(trial: FrozenTrial) -> int | None:
    """Return the examples after which a trial is decided about again; None for a trial that is never paused."""
    if not (steps := steps_of(trial)):
        return None
    until: int = steps[-1][1]["until"]
    ends = trial.user_attrs.get(PART_ENDS)
    # A fold may end before its nominal length, and is decided about then, unless the step leads beyond it.
    return min(until, ends[-1]) if ends and until != ends[-1] + 1 else until


def is_answered(trial: FrozenTrial) -> bool:
    """Whether the search decides about a trial while its job waits; other jobs end at once."""
    return bool(steps_of(trial)[-1][1]["answers"])


def is_paused(trial: FrozenTrial) -> bool:
    """Whether the search has paused an open trial, so that no job of it should run."""
    pauses = pauses_of(trial)
    return not trial.state.is_finished() and bool(pauses) and pauses[-1][1]["at"] >= (until_of(trial) or 0)


def is_waiting(trial: FrozenTrial) -> bool:
    """Whether a trial should have a job: it was begun, and is neither paused nor finished."""
    return not trial.state.is_finished() and not is_paused(trial)


def follow(storage: BaseStorage, trial: FrozenTrial, trial_id: int) -> None:
    """Give an open trial the state that its steps imply: WAITING while it is paused, RUNNING otherwise.

    Nothing is decided from this state, which other tools of Optuna show. It is written after the steps, and again when
    a search continues: a kill may have come between.
    """
    from optuna.trial import TrialState

    wanted = TrialState.WAITING if is_paused(trial) else TrialState.RUNNING
    if not trial.state.is_finished() and trial.state != wanted:
        storage.set_trial_state_values(trial_id, wanted)


def asks(trial: FrozenTrial) -> bool:
    """Whether the job of a trial waits for a decision."""
    until, at = until_of(trial), trial.user_attrs.get(ASKS)
    return until is not None and at is not None and at >= until and not is_paused(trial)


def log_of(trials: Sequence[FrozenTrial]) -> list[Decision]:
    """Return all decisions of a search, in order."""
    found = [(place, trial.number, step) for trial in trials for place, step in steps_of(trial)]
    return [
        Decision(step["until"], number, why=step["why"]) for _, number, step in sorted(found, key=lambda each: each[0])
    ]


def standings(
    trials: Sequence[FrozenTrial], *, maximize: bool, asking: int | None = None, busy: Collection[int] = ()
) -> list[Standing]:
    """Return where all trials with parameters stand.

    `asking` is the trial whose job waits for a decision: it counts as paused. `busy` are those that have a job: one
    that was paused still saves, and counts as running until its job has ended.
    """
    sign = 1.0 if maximize else -1.0
    return [
        _standing(trial, values, sign, is_asking=trial.number == asking, is_busy=trial.number in busy)
        for trial in trials
        if (values := values_of(trial)) is not None
    ]


def _standing(
    trial: FrozenTrial, values: Mapping[str, object], sign: float, *, is_asking: bool, is_busy: bool
) -> Standing:
    ends = trial.user_attrs.get(PART_ENDS, [])
    reports = sorted((at, sign * value) for at, value in trial.intermediate_values.items())
    # Means over several folds change in jumps within a fold, so only the first one is a curve.
    points = [(at, value) for at, value in reports if not ends or at <= ends[0]]
    points = [*(point for point in points if point[0] not in ends), *_means_at(trial, sign)]
    if trial.state.is_finished():
        state = {"FAIL": FAILED, "PRUNED": STOPPED}.get(trial.state.name, ENDED)
        if is_infeasible(trial):
            # Its values do not count, but its examples do.
            state, points = FAILED, [(at, math.nan) for at, _ in points]
    else:
        state = PAUSED if is_asking or (is_paused(trial) and not is_busy) else RUNNING
    found = Standing(trial.number, values, points, until_of(trial) or 0, state, ends, asks=is_asking)
    # A job that saves trains no further.
    return replace(found, until=found.examples) if state == RUNNING and is_paused(trial) else found


def _means_at(trial: FrozenTrial, sign: float) -> list[tuple[int, float]]:
    """Return the examples at which the folds of a trial have ended, and the mean over them: what its value will be."""
    ends = trial.user_attrs.get(PART_ENDS, [])
    found = [(at, math.nan if (value := value_at_end(trial, at)) is None else sign * value) for at in ends]
    if ends and trial.state.name == "COMPLETE" and trial.last_step is not None and trial.last_step > ends[-1]:
        found.append((trial.last_step, sign * trial.values[0]))
    return found


def value_at_end(trial: FrozenTrial, end: int) -> float | None:
    """Return the value of a trial at the end of a fold: the mean of the best values of its folds so far."""
    known: Mapping[str, float | None] = trial.user_attrs.get(PART_VALUES, {})
    return known.get(str(end), trial.intermediate_values.get(end))


def best_so_far(trial: FrozenTrial, *, maximize: bool) -> float:
    """Return the best value that a trial has reported; with folds, once one has ended, the mean over those that have.

    That is what the value of the trial would be if it ended now. NaN without such a number.
    """
    if ends := trial.user_attrs.get(PART_ENDS):
        value = value_at_end(trial, ends[-1])
        return math.nan if value is None else value
    found = filter(math.isfinite, trial.intermediate_values.values())
    return (max if maximize else min)(found, default=math.nan)


def values_of(trial: FrozenTrial) -> Mapping[str, object] | None:
    """Return the parameters of a trial; None before they are drawn."""
    values: Mapping[str, object] | None = trial.user_attrs.get(VALUES) or trial.system_attrs.get(FIXED)
    return values
