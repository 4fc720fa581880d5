"""How often a queue is asked for its jobs, for which of them, and when it is said that it does not answer."""

import pytest

from nlu.jobs import following
from nlu.jobs.following import StatusCache
from nlu.jobs.queue import JobState, Look


class Asked:
    """A queue that counts the questions, and for how many jobs they were."""

    name = "asked"
    poll_s = 1.0
    slowest_poll_s = 8.0

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.state = JobState.RUNNING
        self.is_away = False

    def look(self, ids):
        self.asked.append(len(ids))
        if self.is_away:
            raise OSError("connection refused")
        return {id: Look(self.state) for id in ids}


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""

    class Clock:
        now_s = 1000.0

        def monotonic(self) -> float:
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(following, "time", clock)
    return clock


@pytest.mark.parametrize("count", [10, 100])
def test_trials_that_come_one_by_one_are_asked_for_together(clock, count):
    queue = Asked()
    looks = StatusCache(queue, print)
    for number in range(count):
        looks.at([str(number)])
    clock.now_s += 1.0
    assert looks.at(["0"])["0"] == Look(JobState.RUNNING)
    assert queue.asked == [1, count]


def test_a_queue_that_does_not_answer_three_times_in_a_row_is_reported_once(clock):
    queue, told = Asked(), []
    looks = StatusCache(queue, told.append)
    for is_away in (True, True, False, True, True):
        queue.is_away = is_away
        clock.now_s += 60.0
        looks.at(["1"])
    assert told == [] and looks.at(["1"])["1"] == Look(JobState.RUNNING), "what was known last"
    for _ in range(5):
        clock.now_s += 60.0
        looks.at(["1"])
    assert told == ["asked does not answer (connection refused); nlu keeps asking for its jobs"]
