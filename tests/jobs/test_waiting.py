"""Trials wait for room in a queue that is full; one of them asks for all; a search that is stopped waits no more."""

import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from nlu.jobs import waiting
from nlu.jobs.queue import JobRefused, QueueFull
from nlu.storage.temporary import Pauses


class Queue:
    """Takes as many jobs as there is room for, and counts how often it is asked, and by which threads."""

    def __init__(self, room: int):
        self.room, self.taken = room, 0
        self.askers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self) -> int:
        with self._lock:
            self.askers.append(threading.current_thread())
            if self.taken >= self.room:
                raise QueueFull("Slurm takes no more jobs now: QOSMaxSubmitJobPerUserLimit")
            self.taken += 1
            return self.taken


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_S", 0.01)
    monkeypatch.setattr(waiting, "FULL", Pauses(0.02, 0.02))
    with waiting.of_a_search():
        yield


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.fixture
def trials():
    """A function that starts trials in threads; returns their ends, each a ticket or an error."""
    threads = []

    def start(count: int, queue: Queue) -> list:
        ends: list = []

        def one() -> None:
            try:
                ends.append(waiting.when_there_is_room(queue.submit))
            except JobRefused as refusal:
                ends.append(refusal)

        for _ in range(count):
            threads.append(threading.Thread(target=contextvars.copy_context().run, args=(one,)))
            threads[-1].start()
        return ends

    yield start
    waiting.give_up()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_full_queue_is_asked_by_one_trial_for_all_and_said_to_be_full_once(trials, capfd):
    queue = Queue(room=2)
    ends = trials(6, queue)
    until(lambda: len(set(queue.askers)) == 6 and len(queue.askers) >= 6 + 5)
    # Each asks once for itself, in any order, and one of those that wait asks again for all of them.
    asked = Counter(queue.askers)
    assert sorted(ends) == [1, 2] and len(asked) == 6 and sum(count > 1 for count in asked.values()) == 1
    said = capfd.readouterr().err
    assert said.count("QOSMaxSubmitJobPerUserLimit; trials wait until jobs of yours have left the queue") == 1
    queue.room = 3
    until(lambda: len(ends) == 3)
    queue.room = 6
    until(lambda: len(ends) == 6)
    assert sorted(ends) == [1, 2, 3, 4, 5, 6]
