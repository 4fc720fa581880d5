"""Which checkpoints of a search's trials stay on the disk: what `hydra.sweeper.keep` removes as a search goes.

What may go is a function of the trials in the storage, so a search that is killed and started again decides alike.
Only trials that are decided lose anything: this search never continues a trial that is complete, pruned or failed.

How trials are closed, also all open ones of a search that a user ends: `python -m nlu.jobs FOLDER --stop`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna import Study
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from nlu.config.errors import UserError, is_temporary
from nlu.config.sentences import counted, numbered
from nlu.jobs.following import cancel_jobs
from nlu.runs.freeing import free
from nlu.runs.mirror_files import free_mirror
from nlu.search.channel import ATTEMPT, COMPLETE, FAILED, OUTCOME, PRUNED, outcome_now, worked_s
from nlu.search.goals import MEASURED, Goals, best_trials
from nlu.search.sampling import write_constraints
from nlu.search.storage.open_study import OVER, study_in
from nlu.search.sweep_folder import hold
from nlu.search.trial_steps import best_so_far
from nlu.storage.locks import Locked
from nlu.storage.refusals import Unreachable

if TYPE_CHECKING:
    from optuna import Study


KEEP = ALL, ONLY_BEST = ["all", "best"]
KEPT = "keep"
"""user attribute of a study: what its search has as hydra.sweeper.`keep` and `mirror`; without it all stays"""
DECIDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
AWAY_S = 300.0
"""how long the mirrors are left alone after they did not respond"""
LEAVES_S, LEAVES_POLL_S = 30.0, 0.2
"""how long the end of a search waits for jobs that still hold their trials, and how often it looks"""


def freed(study: Study) -> dict[int, bool]:
    """Return by number each trial whose checkpoints may go where only the best trial keeps its own, and whether its
    best ones stay: those of the best trial, with several objectives of all on the front, and of all pruned ones until a
    trial that keeps the constraints is complete."""
    decided = study.get_trials(deepcopy=False, states=DECIDED)
    kept = {trial.number for trial in best_trials(study)}
    if not kept:
        # All may end like this, and then the weights of pruned trials are the only ones.
        return {trial.number: trial.state == TrialState.PRUNED for trial in decided}
    return {trial.number: trial.number in kept for trial in decided}


def note_kept(study: Study, keep: str, mirror: str | None) -> None:
    """Note in a study what a search keeps, for whoever ends it (`python -m nlu.jobs FOLDER --stop`)."""
    asked = {"keep": keep, "mirror": mirror}
    if study.user_attrs.get(KEPT, {"keep": ALL, "mirror": None}) != asked:
        study.set_user_attr(KEPT, asked)


class Keeper:
    """Removes checkpoints of trials that are decided, as noted in their study; trials that run or wait keep all."""

    def __init__(self, study: Study, folder: Path, say: Callable[[str], None]):
        self._study, self._folder, self._say = study, folder, say
        asked = study.user_attrs.get(KEPT, {})
        self.only_best, self.mirror = asked.get("keep") == ONLY_BEST, asked.get("mirror")
        self._freed: dict[int, bool] = {}
        self._has_complained = False
        self._away_until_s = 0.0

    def update(self) -> list[int]:
        """Remove what may go of the trials that have ended.

        Returns the trials whose checkpoints stay for now: a process holds them, or a store or disk does not respond.
        """
        wanted = freed(self._study) if self.only_best else {}
        for number, keeps_best in wanted.items():
            # The search waits for each request, so it does not wait again and again for a store that is down.
            if self._freed.get(number) == keeps_best or time.monotonic() < self._away_until_s:
                continue
            try:
                # The mirror first: a launcher that fetches the run meanwhile may bring its checkpoints back.
                mirror = self.mirror and f"{self.mirror.rstrip('/')}/{number}"
                if not mirror or free_mirror(mirror, keeps_best=keeps_best):
                    free(self._folder / str(number), keeps_best=keeps_best)
                    self._freed[number] = keeps_best
            except Locked:
                continue
            except Exception as error:
                # Whatever a store or a disk raises must not end the search; it is tried again later.
                if not self._has_complained:
                    self._say(f"checkpoints of trial {number} stay for now: {error}")
                    self._has_complained = True
                if isinstance(error, Unreachable):
                    self._away_until_s = time.monotonic() + AWAY_S
        return [number for number, keeps_best in wanted.items() if self._freed.get(number) != keeps_best]

    def end(self) -> list[int]:
        """Remove what is left at the end, also of runs that were fetched from their mirrors after their removal.

        A job that has just ended, or was just cancelled, is waited for; a store that is down is not. Returns what
        `update` does.
        """
        self._freed, self._away_until_s, end_s = {}, 0.0, time.monotonic() + LEAVES_S
        while (left := self.update()) and self._away_until_s <= time.monotonic() < end_s:
            time.sleep(LEAVES_POLL_S)
        return left


WHY, LEFT = "stopped by a user", "paused to the end"
"""why a trial that was not decided is closed as pruned"""
STATES = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}


def has_outcome(trial: FrozenTrial) -> bool:
    """Whether the last attempt of a trial has ended."""
    return trial.user_attrs.get(OUTCOME, {}).get("attempt", -1) >= trial.user_attrs.get(ATTEMPT, 0)


def outcome_of(frozen: FrozenTrial, why: str, *, maximize: bool) -> dict[str, Any]:
    """Return the outcome of a trial that is closed for this reason: pruned, with its value so far (`best_so_far`)."""
    attempt, value = frozen.user_attrs.get(ATTEMPT, 0), best_so_far(frozen, maximize=maximize)
    known = {"value": None if math.isnan(value) else value, "examples": frozen.last_step, "error": why}
    return outcome_now(PRUNED, attempt, wall_s=worked_s(frozen), **known)


def end_search(folder: Path, say: Callable[[str], None]) -> str:
    """Note in the storage of a search that it is over, so that it cannot be continued, and close its open trials.

    Their jobs are cancelled, or end at their next report. A command that runs the search closes them, and ends. If none
    runs, this closes them and removes the checkpoints that need not stay. It may be repeated. Returns a sentence about
    what happened; `say` gets what could not be done. Raises UserError if the folder holds no search.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = study_in(folder)
    study.set_user_attr(OVER, {"time_s": time.time()})
    left_open = [trial.number for trial in study.get_trials(deepcopy=False) if _is_undecided(trial)]
    for number in left_open:
        try:
            cancel_jobs(folder, [number])
        except (UserError, OSError) as error:
            say(f"trial {number}: {error}; its job ends when it reports next")
    what = f"the search in {folder} is over"
    try:
        # A search that runs may be about to write to its trials.
        with hold(folder):
            closed = close_open(study)
            if left := Keeper(study, folder, say).end():
                say(
                    f"checkpoints of {numbered('trial', left)} stay, where a job still runs; the same command removes "
                    "them"
                )
    except UserError as error:
        if is_temporary(error):
            raise
        return f"{what}: the command that runs it ends, with {counted(len(left_open), 'open trial')}"
    ended = f": {numbered('trial', closed)} closed as pruned" if closed else ""
    return f"{what}{ended}; python -m nlu.report search {folder} writes its tables and its page again"


def _is_undecided(trial: FrozenTrial) -> bool:
    return not trial.state.is_finished() and not has_outcome(trial)


def close_open(study: Study) -> list[int]:
    """Close the open trials of a search that a user has ended; returns the numbers of those without an outcome."""
    found = []
    for trial in study.get_trials(deepcopy=False):
        if not trial.state.is_finished():
            found += [trial.number] * _is_undecided(trial)
            close(study, with_outcome(study, trial, WHY))
    return found


def with_outcome(study: Study, trial: FrozenTrial, why: str) -> FrozenTrial:
    """Return an open trial with an outcome, which is written: its own, or that of a pruned one."""
    if not has_outcome(trial):
        outcome = outcome_of(trial, why, maximize=study.directions[0].name == "MAXIMIZE")
        with suppress(UpdateFinishedTrialError):
            study._storage.set_trial_user_attr(trial._trial_id, OUTCOME, outcome)
        return study._storage.get_trial(trial._trial_id)
    return trial


def close(study: Study, trial: FrozenTrial) -> None:
    """Tell a study how one of its trials has ended, by its outcome; a trial that is closed stays as it is."""
    goals, measured = Goals.of(study.user_attrs), trial.user_attrs.get(MEASURED, {})
    outcome = trial.user_attrs[OUTCOME]
    value, state = outcome["value"], STATES[outcome["state"]]
    with suppress(UpdateFinishedTrialError):
        write_constraints(study._storage, trial._trial_id, goals.violations(measured))
        # Optuna closes no trial that waits, as one does that was paused and is then stopped, or fails as it saves.
        if trial.state == TrialState.WAITING:
            study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        values = None
        if state == TrialState.COMPLETE:
            values = [value, *(measured[name] for name in goals.objectives)]
        elif state == TrialState.PRUNED and not goals.objectives and value is not None and math.isfinite(value):
            # Optuna would give it its last report. Of several objectives it has no others.
            values = [value]
        study._storage.set_trial_state_values(trial._trial_id, state, values)
