"""What queues say of the jobs of this process: each is asked for all its jobs at once, as often as it likes."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from nlu.launching.queue import Look, Queue

POLL_S = 5.0
"""how often a queue is asked that does not say how often it likes to be"""
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
        self._asked_s = 0.0
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
        interval_s = getattr(self._queue, "poll_s", POLL_S)
        with self._lock:
            is_new = any(id not in self._wanted for id in ids)
            self._wanted |= {id: None for id in ids if id not in self._wanted}
            if is_new or time.monotonic() - self._asked_s >= interval_s:
                self._ask()
            return {id: self._wanted[id] for id in ids}

    def forget(self, ids: Sequence[str]) -> None:
        """Ask no more for these jobs."""
        with self._lock:
            for id in ids:
                self._wanted.pop(id, None)

    def _ask(self) -> None:
        open_ids = [id for id, look in self._wanted.items() if look is None or not look.state.is_final]
        try:
            if open_ids:
                self._wanted |= self._queue.look(open_ids)
            self._failures = 0
        except OSError as error:
            self._failures += 1
            if self._failures == AWAY_TOLD_AFTER:
                self._say(f"{self._queue.name} does not answer ({error}); its jobs are asked for again and again")
        self._asked_s = time.monotonic()
