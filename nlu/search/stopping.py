"""How trials are closed, also those that a user stops for good, one or all: `python -m nlu.jobs FOLDER --stop`."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from nlu.config.errors import UserError, is_temporary
from nlu.config.words import counted, numbered
from nlu.jobs.listing import cancel_jobs
from nlu.search.channel import ATTEMPT, COMPLETE, FAILED, OUTCOME, PRUNED, outcome_now, worked_s
from nlu.search.folder import OVER, hold
from nlu.search.goals import MEASURED, Goals
from nlu.search.keeping import Keeper
from nlu.search.optuna_private import write_constraints
from nlu.search.steps import STOP, best_so_far, is_stopped
from nlu.search.storage.holder import Holder
from nlu.search.storage.opening import study_in

CANCEL_AGAIN_S = 10.0
"""how long after a try the job of a stopped trial is cancelled again: it may have been submitted meanwhile"""
WHY, LEFT = "stopped by a user", "paused to the end"
"""why a trial that was not decided is closed as pruned"""
STATES = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}


class Canceller:
    """Cancels the jobs of stopped trials."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._tried_s: dict[int, float] = {}

    def cancel(self, number: int) -> bool:
        """Have the job of a trial end soon; returns whether this is the first call for the trial."""
        now_s, is_first = time.monotonic(), number not in self._tried_s
        if is_first or now_s - self._tried_s[number] >= CANCEL_AGAIN_S:
            self._tried_s[number] = now_s
            # Otherwise the job ends by itself when it reports next, and it is cancelled again later.
            with suppress(UserError, OSError):
                cancel_jobs(self._folder, [number])
        return is_first


def has_outcome(trial: FrozenTrial) -> bool:
    """Whether the last attempt of a trial has ended."""
    return trial.user_attrs.get(OUTCOME, {}).get("attempt", -1) >= trial.user_attrs.get(ATTEMPT, 0)


def outcome_of(frozen: FrozenTrial, why: str = WHY, *, maximize: bool) -> dict[str, Any]:
    """Return the outcome of a trial that is closed for this reason: pruned, with its value so far (`best_so_far`)."""
    attempt, value = frozen.user_attrs.get(ATTEMPT, 0), best_so_far(frozen, maximize=maximize)
    known = {"value": None if math.isnan(value) else value, "examples": frozen.last_step, "error": why}
    return outcome_now(PRUNED, attempt, wall_s=worked_s(frozen), **known)


def stop_trials(folder: Path, numbers: Sequence[int], say: Callable[[str], None]) -> list[int]:
    """Note in the storage of a search that these trials are stopped for good, and return those that had not ended.

    Their jobs are cancelled, or end at their next report, and the search closes the trials as pruned, now or when it
    continues. `say` gets why a job cannot be cancelled. Raises UserError, before anything is written, if the folder
    holds no search or a number is unknown.
    """
    study = _study_in(folder)
    trials = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
    if unknown := sorted(set(numbers) - trials.keys()):
        known = (
            f"its trials are 0 to {max(trials)}" if len(trials) > 1 else "only trial 0" if trials else "it has none yet"
        )
        raise UserError(f"{folder} has no {numbered('trial', unknown)}; {known}")
    stopped = note_stopped(study, [trials[number] for number in dict.fromkeys(numbers)])
    _cancel(folder, stopped, say)
    return stopped


def note_stopped(study: Study, trials: Iterable[FrozenTrial]) -> list[int]:
    """Note that these trials are stopped for good; returns the numbers of those that had not ended."""
    found = []
    for trial in trials:
        if trial.state.is_finished():
            continue
        with suppress(UpdateFinishedTrialError):
            if not is_stopped(trial):
                study._storage.set_trial_user_attr(trial._trial_id, STOP, {"time_s": time.time()})
            found.append(trial.number)
    return found


def end_search(folder: Path, say: Callable[[str], None]) -> str:
    """Note in the storage of a search that it is over, so that it cannot be continued, and have its open trials end.

    A search that runs cancels their jobs, closes the trials as pruned, and ends. If none runs, this does the same, and
    removes the checkpoints that need not stay. It may be repeated. Returns a sentence about what happened; `say` gets
    what could not be done. Raises UserError if the folder holds no search.
    """
    study = _study_in(folder)
    study.set_user_attr(OVER, {"time_s": time.time()})
    stopped = note_stopped(study, study.get_trials(deepcopy=False))
    _cancel(folder, stopped, say)
    what = f"the search in {folder} is over"
    keeper = Keeper(study, folder, say)
    with ExitStack() as held:
        try:
            held.enter_context(hold(folder))
            # Whoever has the lock of the folder runs its search, unless hosts share the folder by a mirror.
            held.enter_context(Holder(study._storage, study.study_name, take=keeper.mirror is None))
        except UserError as error:
            if is_temporary(error):
                raise
            return f"{what}: the command that runs it ends {counted(len(stopped), 'open trial')}, and then itself"
        pruned = []
        for trial in study.get_trials(deepcopy=False):
            if not trial.state.is_finished():
                ended = with_outcome(study, trial, WHY)
                close(study, ended)
                pruned += [trial.number] * (ended.user_attrs[OUTCOME]["state"] == PRUNED)
        if left := keeper.end():
            say(f"checkpoints of {numbered('trial', left)} stay, where a job still runs; the same command removes them")
    closed = f": {numbered('trial', pruned)} closed as pruned" if pruned else ""
    return f"{what}{closed}; python -m nlu.report search {folder} writes its tables and its page again"


def with_outcome(study: Study, trial: FrozenTrial, why: str) -> FrozenTrial:
    """Return an open trial without a job with an outcome, which is written: its own, or that of a pruned one."""
    if not has_outcome(trial):
        outcome = outcome_of(trial, why, maximize=study.directions[0].name == "MAXIMIZE")
        study._storage.set_trial_user_attr(trial._trial_id, OUTCOME, outcome)
        return study._storage.get_trial(trial._trial_id)
    return trial


def close(study: Study, trial: FrozenTrial) -> None:
    """Tell a study how one of its trials has ended, by its outcome; a trial that is closed stays as it is."""
    goals, measured = Goals.of(study.user_attrs), trial.user_attrs.get(MEASURED, {})
    outcome = trial.user_attrs[OUTCOME]
    write_constraints(study._storage, trial._trial_id, goals.violations(measured))
    # Optuna closes no trial that waits, as one does that was paused and is then stopped, or fails as it saves.
    if trial.state == TrialState.WAITING:
        study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
    values, value = None, outcome["value"]
    if (state := STATES[outcome["state"]]) == TrialState.COMPLETE:
        values = [value, *(measured[name] for name in goals.objectives)]
    elif state == TrialState.PRUNED and len(study.directions) == 1 and value is not None and math.isfinite(value):
        # Optuna would give it its last report.
        with suppress(UpdateFinishedTrialError):
            study._storage.set_trial_state_values(trial._trial_id, state, [value])
        return
    study.tell(trial.number, state=state, values=values, skip_if_finished=True)


def _study_in(folder: Path) -> Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return study_in(folder)


def _cancel(folder: Path, numbers: Iterable[int], say: Callable[[str], None]) -> None:
    """Cancel the jobs of trials, whether a search runs that would do so or not."""
    for number in numbers:
        try:
            cancel_jobs(folder, [number])
        except (UserError, OSError) as error:
            say(f"trial {number}: {error}; its job ends when it reports next")
