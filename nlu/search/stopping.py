"""Trials that a user stops for good, whether their search runs or not: `python -m nlu.jobs FOLDER --stop NUMBER`."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from nlu.config.errors import UserError
from nlu.config.words import numbered
from nlu.jobs.listing import cancel_jobs
from nlu.search.channel import PRUNED, worked_s
from nlu.search.steps import PART_ENDS, STOP, value_at_end
from nlu.search.storage.opening import study_in

CANCEL_AGAIN_S = 10.0
"""how long after a try the job of a stopped trial is cancelled again: it may have been submitted meanwhile"""
WHY, LEFT = "stopped by a user", "paused to the end"
"""why a trial that was not decided is closed as pruned"""


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


def outcome_of(frozen: FrozenTrial, why: str = WHY, *, maximize: bool) -> dict[str, Any]:
    """Return the outcome of a trial that is closed for this reason: pruned, with the best value that it reported.

    If a fold of it has ended, the value is that by which the search compares it, at the end of the last one.
    """
    values, ends = frozen.intermediate_values, frozen.user_attrs.get(PART_ENDS)
    best = (max if maximize else min)(values.values(), default=None)
    return {
        "state": PRUNED,
        "attempt": frozen.user_attrs.get("attempt", 0),
        "value": value_at_end(frozen, ends[-1]) if ends else best,
        "examples": frozen.last_step,
        "wall_s": worked_s(frozen),
        "ended_s": time.time(),
        "folder": None,
        "error": why,
        "log": None,
    }


def stop_trials(folder: Path, numbers: Sequence[int]) -> list[int]:
    """Note in the storage of a search that these trials are stopped for good, and return those that had not ended.

    Their jobs end at their next report, and the search closes the trials as pruned, now or when it continues. Raises
    UserError, before anything is written, if the folder holds no search or a number is unknown.
    """
    import optuna
    from optuna.exceptions import UpdateFinishedTrialError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = study_in(folder)
    trials = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
    if unknown := sorted(set(numbers) - trials.keys()):
        known = (
            f"its trials are 0 to {max(trials)}" if len(trials) > 1 else "only trial 0" if trials else "it has none yet"
        )
        raise UserError(f"{folder} has no {numbered('trial', unknown)}; {known}")
    found = []
    for number in dict.fromkeys(numbers):
        if trials[number].state.is_finished():
            continue
        try:
            study._storage.set_trial_user_attr(trials[number]._trial_id, STOP, {"time_s": time.time()})
        except UpdateFinishedTrialError:
            # It has just ended.
            continue
        found.append(number)
    return found
