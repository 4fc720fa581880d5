"""A tracker that cannot hurt the run: what it raises is told once, and from then on it is off; so is one that hangs.

Its calls run in a thread of their own, for which the run waits only so long. What is told of a step is gathered until
the next one comes, since some trackers take a step but once.
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
"""for a start, which may wait for runs that start as well, and tell all that a run has left so far"""
LIMIT_S = 120.0
"""for any other call"""


class Guarded:
    """Stands before a tracker."""

    def __init__(self, tracker: Tracker):
        self._tracker = tracker
        self._point: Point | None = None
        self._thread = None if isinstance(tracker, Nothing) else _Thread()

    def start(self, beginning: Beginning) -> None:
        self._do("starting", lambda: self._tracker.start(beginning))

    def log(self, point: Point) -> None:
        """Take a point; points of the same step become one."""
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
        self._leave_out()

    def _hand_over(self) -> None:
        point, self._point = self._point, None
        if point is not None:
            self._do("logging", lambda: self._tracker.log(point))

    def _do(self, what: str, call: Call) -> None:
        if self._thread is None:
            return
        name, limit_s = type(self._tracker).__name__, START_LIMIT_S if what == "starting" else LIMIT_S
        done = self._thread.begin(call)
        try:
            done.result(limit_s)
        except Exception as error:
            # Whatever a library of others does, hours of training are worth more than its charts.
            said = " ".join(str(error).split())
            how = f"failed while {what} ({type(error).__name__}{f': {said}' if said else ''})"
            if not done.done():
                how = f"hangs while {what}, for {limit_s:g} s by now,"
            log.warning(
                "the tracker %s %s and is off from here on; the run continues, and its own tables have everything",
                name, how,
            )  # fmt: skip
            self._leave_out()

    def _leave_out(self) -> None:
        self._tracker = Nothing()
        if self._thread is not None:
            self._thread.end()
            self._thread = None


class _Thread:
    """Runs calls one after the other. The end of the process does not wait for it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Call, Future[None]] | None] = SimpleQueue()
        Thread(target=self._run, name="tracker", daemon=True).start()

    def begin(self, call: Call) -> Future[None]:
        done: Future[None] = Future()
        self._calls.put((call, done))
        return done

    def end(self) -> None:
        """Let it go once it has done what it does."""
        self._calls.put(None)

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            call, done = given
            try:
                call()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)
