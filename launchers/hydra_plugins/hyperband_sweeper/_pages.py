"""The page of a search and its tables, written again while the search runs."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from optuna.trial import FrozenTrial

from nlu.sweeps import steps
from nlu.sweeps.faults import StorageUnavailable, last_line
from nlu.sweeps.schedulers.scheduler import Scheduler

from ._plan import SearchPlan

EVERY_S = 60.0
"""the shortest time between two pages; a short search has only the one at its end"""
SHARE = 20
"""the time between two pages is at least so many times that of writing one"""


class Pages:
    """Writes the page when something has changed, at most once a minute and for a twentieth of the time."""

    def __init__(self, plan: SearchPlan, scheduler: Scheduler | None, say: Callable[..., None]):
        self._plan, self._scheduler, self._say = plan, scheduler, say
        self._due_s = time.monotonic() + EVERY_S
        self._shown: object = None
        self._is_off = False

    def update(self, read: Callable[[], Sequence[FrozenTrial]]) -> None:
        """Write the page if it is due; `read` returns all trials."""
        if time.monotonic() >= self._due_s:
            self.write(read)

    def write(self, read: Callable[[], Sequence[FrozenTrial]]) -> None:
        """Write the page, unless nothing has changed."""
        # A storage that does not answer is waited for, or reported, where its answer matters.
        with suppress(StorageUnavailable):
            if not self._is_off:
                self._write(read())

    def _write(self, trials: Sequence[FrozenTrial]) -> None:
        began_s = time.monotonic()
        now = [(trial.state, trial.last_step, len(steps.steps_of(trial)), steps.is_paused(trial)) for trial in trials]
        if now != self._shown and any(trial.intermediate_values or trial.values for trial in trials):
            try:
                # Its libraries take a second to import.
                from nlu.sweeps.summary import write_page_so_far

                write_page_so_far(self._plan.study, self._plan.folder, self._scheduler)
            except StorageUnavailable:
                raise
            except Exception as error:
                # A search must not end for a picture.
                self._is_off = True
                self._say(f"the page of the search is written only at its end: {last_line(error)}", style="yellow")
            self._shown = now
        ended_s = time.monotonic()
        self._due_s = ended_s + max(EVERY_S, SHARE * (ended_s - began_s))
