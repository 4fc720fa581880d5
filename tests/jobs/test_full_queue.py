"""Of the trials that wait for a queue one asks for all; a search that is stopped waits no more."""

import threading
import time
from contextvars import copy_context

import pytest

from nlu.jobs import full_queue


@pytest.fixture(autouse=True)
def search(monkeypatch):
    monkeypatch.setattr(full_queue, "LOOK_S", 0.01)
    with full_queue.of_a_search():
        yield


def start(*works) -> list[threading.Thread]:
    threads = [threading.Thread(target=copy_context().run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    return threads


def test_one_of_the_waiting_trials_asks_at_a_time_and_the_first_says_why(capfd):
    asking, most, done = [], [], []

    def trial() -> None:
        with full_queue.in_turn("slurm took no job: it is full"):
            asking.append(1)
            most.append(len(asking))
            full_queue.pause(0.05)
            asking.pop()
            done.append(1)

    for thread in start(*[trial] * 6):
        thread.join(60)
    assert len(done) == 6 and set(most) == {1}
    assert capfd.readouterr().err.count("slurm took no job: it is full; trials wait") == 1


def test_trials_of_a_search_that_ends_stop_waiting_also_for_their_turn():
    paused = []

    def trial() -> None:
        with full_queue.in_turn("full"):
            paused.append(full_queue.pause(3000))

    threads = start(*[trial] * 3)
    time.sleep(0.1)
    full_queue.give_up()
    for thread in threads:
        thread.join(60)
    assert paused == [False] * 3
