"""The page of a search and its tables, written again while the search runs, by another process."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from optuna.trial import FrozenTrial

from nlu.sweeps import steps
from nlu.sweeps.faults import StorageUnavailable, last_line
from nlu.sweeps.page_process import NICE, PageProcess
from nlu.sweeps.snapshot import Snapshot

from ._plan import SearchPlan

EVERY_S = 60.0
"""the shortest time between two pages; a short search has only the one at its end"""
SHARE = 20
"""the time between two pages is at least so many times the CPU time of writing one"""


class Pages:
    """Has the page written when something has changed, at most once a minute and for a twentieth of the time.

    The search only starts the process that writes it, one at a time, and waits for none but the last one. As a context:
    no process is left after it.
    """

    def __init__(self, plan: SearchPlan, say: Callable[..., None]):
        self._plan, self._say = plan, say
        self._due_s = time.monotonic() + EVERY_S
        self._begun_s = 0.0
        self._process: PageProcess | None = None
        self._shown: object = None
        """what the last page shows of the trials, or the one that is being written"""
        self._is_off = False

    def __enter__(self) -> "Pages":
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process is not None:
            # It shows a former state, and must not replace the files that come now.
            self._process.end()
            self._process = None

    def update(self, read: Callable[[], Sequence[FrozenTrial]]) -> None:
        """Start to write the page if it is due and the last one has ended; `read` returns all trials."""
        self._report()
        if self._process is None and not self._is_off and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + EVERY_S
            # A storage that does not answer is waited for, or reported, where its answer matters.
            with suppress(StorageUnavailable):
                self._begin(read(), NICE)

    def write(self, read: Callable[[], Sequence[FrozenTrial]]) -> None:
        """Write the page and wait for it, unless nothing has changed; also if an earlier one could not be written."""
        self._report()
        with suppress(StorageUnavailable):
            trials = read()
            if self._process is not None and _state_of(trials) != self._shown:
                self._process.end()
                self._process = None
            if self._process is None:
                self._begin(trials, 0)
        if self._process is not None:
            self._process.wait()
        self._report()

    def _begin(self, trials: Sequence[FrozenTrial], nice: int) -> None:
        """Start the process for these trials, unless the last page shows them or there is nothing to show yet."""
        if (now := _state_of(trials)) == self._shown:
            return
        if not any(trial.intermediate_values or trial.values for trial in trials):
            return
        plan = self._plan
        try:
            snapshot = Snapshot(
                taken_s=time.time(),
                folder=plan.folder.absolute(),
                name=plan.study.study_name,
                direction=plan.study.direction,
                attributes=plan.study.user_attrs,
                trials=list(trials),
            )
            self._process = PageProcess(snapshot, nice=nice)
        except StorageUnavailable:
            raise
        except Exception as error:
            self._turn_off(last_line(error))
            return
        self._shown, self._begun_s = now, time.monotonic()

    def _report(self) -> None:
        """If the process has ended, take its result."""
        if self._process is None or not self._process.has_ended():
            return
        cpu_s, error = self._process.result()
        self._process = None
        self._due_s = max(self._due_s, self._begun_s + SHARE * cpu_s)
        if error is not None:
            self._turn_off(error)

    def _turn_off(self, error: str) -> None:
        # A search must not end for a picture.
        self._is_off, self._shown = True, None
        self._say(f"the page of the search is written only at its end: {error}", style="yellow")


def _state_of(trials: Sequence[FrozenTrial]) -> object:
    """Return what differs when a page would show something new."""
    return [(trial.state, trial.last_step, len(steps.steps_of(trial)), steps.is_paused(trial)) for trial in trials]
