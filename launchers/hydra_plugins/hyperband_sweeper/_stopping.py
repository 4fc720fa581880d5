"""Trials that a user stops for good while the search goes on (`python -m nlu.jobs FOLDER --stop NUMBER`)."""

import threading
import time
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from nlu.config.errors import UserError
from nlu.launching.listing import cancel_job
from nlu.sweeps.channel import PRUNED, worked_s
from nlu.sweeps.steps import PART_ENDS, value_at_end

CANCEL_AGAIN_S = 10.0
"""how long after a try the job of a stopped trial is cancelled again: it may have been submitted meanwhile"""
WHY = "stopped by a user"


class Canceller:
    """Cancels the jobs of stopped trials, in threads: a queue may take long to answer."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._threads: dict[int, threading.Thread] = {}
        self._tried_s: dict[int, float] = {}

    def cancel(self, number: int) -> bool:
        """Have the job of a trial end soon; returns whether this is the first call for the trial."""
        is_first = number not in self._tried_s
        thread = self._threads.get(number)
        if not is_first and (thread is not None and thread.is_alive() or self._age_s(number) < CANCEL_AGAIN_S):
            return False
        self._tried_s[number] = time.monotonic()
        self._threads[number] = threading.Thread(target=self._cancel, args=(number,), daemon=True)
        self._threads[number].start()
        return is_first

    def _age_s(self, number: int) -> float:
        return time.monotonic() - self._tried_s[number]

    def _cancel(self, number: int) -> None:
        try:
            cancel_job(self._folder, number)
        except (UserError, OSError):
            # The job ends by itself when it reports next, and it is cancelled again later.
            return


def outcome_of(frozen: FrozenTrial, *, maximize: bool) -> dict[str, Any]:
    """Return the outcome of a trial that a user stopped: pruned, with the best value that it reported.

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
        "error": WHY,
        "log": None,
    }
