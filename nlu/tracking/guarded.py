"""A tracker that cannot harm the run: if it raises an error or hangs, it is logged once and switched off.

Its calls run in a separate thread, with a limit of time. The points of a step are collected until the next step, since
some trackers accept each step only once.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

from nlu.tracking.nothing import Nothing
from nlu.tracking.tracker import Beginning, Outcome, Point, Tracker

log = logging.getLogger(__name__)

Call = Callable[[], None]
START_LIMIT_S = 600.0
"""the limit for a start, which may wait for other runs that start, and logs all earlier points again"""
LIMIT_S = 120.0
"""the limit for any other call"""


class Guarded:
    """Calls another tracker, and switches it off if it fails."""

    def __init__(self, tracker: Tracker):
        self._tracker = tracker
        self._point: Point | None = None
        self._thread = None if isinstance(tracker, Nothing) else _Thread()

    def start(self, beginning: Beginning) -> None:
        self._do("starting", lambda: self._tracker.start(beginning))

    def log(self, point: Point) -> None:
        """Log a point; points of the same step are joined."""
        if self._point is not None and self._point.step == point.step:
            self._point.add(point)
            return
        self._hand_over()
        self._point = point

    def flush(self) -> None:
        self._hand_over()
        self._do("flushing", lambda: self._tracker.flush())

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        """End once; later calls do nothing."""
        self._hand_over()
        self._do("ending", lambda: self._tracker.end(outcome, results))
        self._switch_off()

    def _hand_over(self) -> None:
        point, self._point = self._point, None
        if point is not None:
            self._do("logging", lambda: self._tracker.log(point))

    def _do(self, what: str, call: Call) -> None:
        if self._thread is None:
            return
        name, limit_s = type(self._tracker).__name__, START_LIMIT_S if what == "starting" else LIMIT_S
        # The caller waits for each call, so the tracker never falls behind the saved state; the thread exists for the
        # limit of time only.
        done = self._thread.begin(call)
        try:
            done.result(limit_s)
        except Exception as error:
            # No error of a tracker may end hours of training.
            said = " ".join(str(error).split())
            how = f"failed while {what} ({type(error).__name__}{f': {said}' if said else ''})"
            if not done.done():
                how = f"hangs while {what}, for {limit_s:g} s,"
            rest = "the run continues, and its own tables have all numbers"
            log.warning("the tracker %s %s and is now off; %s", name, how, rest)
            self._switch_off()

    def _switch_off(self) -> None:
        # A hanging call cannot be ended in Python. Its thread is a daemon, so it does not keep the process alive.
        self._tracker = Nothing()
        if self._thread is not None:
            self._thread.end()
            self._thread = None


class _Thread:
    """Runs calls one after the other, as a daemon, so that the process can end without it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Call, Future[None]] | None] = SimpleQueue()
        Thread(target=self._run, name="tracker", daemon=True).start()

    def begin(self, call: Call) -> Future[None]:
        done: Future[None] = Future()
        self._calls.put((call, done))
        return done

    def end(self) -> None:
        """End the thread after its current call."""
        self._calls.put(None)

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            call, done = given
            try:
                call()
            # SystemExit of a library must not end the thread with a caller that waits for its result.
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)
