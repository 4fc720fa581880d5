"""A tracker that cannot hurt the run: what it raises is told once, and from then on it is off.

What is told of a step is gathered until the next one comes, since some trackers take a step but once.
"""

import logging
from collections.abc import Callable, Mapping

from nlu.tracking.nothing import Nothing
from nlu.tracking.tracker import Beginning, Outcome, Point, Tracker

log = logging.getLogger(__name__)


class Guarded:
    """Stands before a tracker."""

    def __init__(self, tracker: Tracker):
        self._tracker = tracker
        self._point: Point | None = None

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
        self._tracker = Nothing()

    def _hand_over(self) -> None:
        point, self._point = self._point, None
        if point is not None:
            self._do("logging", lambda: self._tracker.log(point))

    def _do(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            # Whatever a library of others does, hours of training are worth more than its charts.
            name, said = type(self._tracker).__name__, " ".join(str(error).split())
            log.warning(
                "the tracker %s failed while %s (%s%s) and is off from here on; the run goes on, and its own tables "
                "have everything", name, what, type(error).__name__, f": {said}" if said else "",
            )  # fmt: skip
            self._tracker = Nothing()
