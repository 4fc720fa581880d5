"""What queues say of the jobs of this process: each is asked for all its jobs at once, as often as it likes.

A cluster answers thousands of such questions. So a queue that has a `slowest_poll_s` is asked after `poll_s` while jobs
begin or end, and less and less often, down to that, while nothing changes.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from nlu.launching.queue import Look, Queue

POLL_S = 5.0
"""how often a queue is asked that does not say how often it likes to be"""
SLOWER = 1.5
"""by how much longer a queue is left alone after a question that brought nothing new"""
AWAY_TOLD_AFTER = 3
"""so many times in a row a queue may fail to answer before that is said"""


class Looks:
    """Jobs of one queue, looked at by several threads, each of which waits for its own."""

    _known: dict[str, "Looks"] = {}
    _knowing = threading.Lock()

    def __init__(self, queue: Queue, say: Callable[[str], None]):
        self._queue, self._say = queue, say
        self._lock = threading.Lock()
        self._wanted: dict[str, Look | None] = {}
        self._asked_s = -math.inf
        self._poll_s = self._interval_s = getattr(queue, "poll_s", POLL_S)
        self._slowest_s = max(self._poll_s, getattr(queue, "slowest_poll_s", self._poll_s))
        self._failures = 0

    @classmethod
    def of(cls, queue: Queue, say: Callable[[str], None]) -> "Looks":
        """Return what is shared by all jobs of queues of this name in this process."""
        if getattr(queue, "poll_s", POLL_S) < 1:
            # It costs next to nothing, and knows its own jobs best.
            return cls(queue, say)
        with cls._knowing:
            return cls._known.setdefault(queue.name, cls(queue, say))

    def at(self, ids: Sequence[str]) -> Mapping[str, Look | None]:
        """Return what was last said of these jobs, which are asked for where that is long ago; None: nothing yet."""
        with self._lock:
            if new := [id for id in ids if id not in self._wanted]:
                # Trials come one by one: if the queue were asked for each, it would be asked for all of them each time.
                self._wanted |= dict.fromkeys(new)
                self._interval_s = self._poll_s
            if time.monotonic() - self._asked_s >= self._interval_s:
                self._ask()
            return {id: self._wanted[id] for id in ids}

    def forget(self, ids: Sequence[str]) -> None:
        """Ask no more for these jobs."""
        with self._lock:
            for id in ids:
                self._wanted.pop(id, None)

    def _ask(self) -> None:
        before = {id: look for id, look in self._wanted.items() if look is None or not look.state.is_final}
        try:
            if before:
                self._wanted |= self._queue.look(list(before))
            self._failures = 0
        except OSError as error:
            self._failures += 1
            if self._failures == AWAY_TOLD_AFTER:
                self._say(f"{self._queue.name} does not answer ({error}); its jobs are asked for again and again")
        is_changed = any(_state(self._wanted[id]) != _state(look) for id, look in before.items())
        self._interval_s = self._poll_s if is_changed else min(SLOWER * self._interval_s, self._slowest_s)
        self._asked_s = time.monotonic()


def _state(look: Look | None) -> object:
    return None if look is None else look.state
