"""One heartbeat and one rule of silence, with a clock that the test moves."""

import itertools
import threading

import pytest

from nlu.storage import heartbeat
from nlu.storage.heartbeat import Heartbeat, Watch, falls_silent


class Clock:
    """Stands for `time` in the module: seconds pass when the test, or a sleep, says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    return clock


def test_a_heart_beats_at_once_and_through_errors_until_it_is_stopped() -> None:
    counts: list[int] = []
    has_beaten = threading.Event()

    def beat(count: int) -> bool:
        counts.append(count)
        if count == 3:
            has_beaten.set()
        if count % 2:
            raise OSError("away")
        return True

    heart = Heartbeat(beat, name="test", interval_s=0.001)
    heart.stop()
    heart = Heartbeat(beat, name="test", interval_s=0.001)
    heart.start()
    assert has_beaten.wait(60)
    heart.stop()
    known = list(counts)
    assert known == list(range(len(known))) and not heart._thread.is_alive()


def test_a_heartbeat_stops_when_its_function_says_so() -> None:
    counts: list[int] = []
    heart = Heartbeat(lambda count: counts.append(count) or count < 2, name="test", interval_s=0.001)  # type: ignore[func-returns-value]
    heart.start()
    heart._thread.join(60)
    assert counts == [0, 1, 2]


def test_silence_counts_from_the_look_that_saw_the_sign_first_to_the_last_one(clock: Clock) -> None:
    signs = iter(["a", "a", "b", "b"])
    watch = Watch(lambda: next(signs))
    for passed_s, still_s in ((5.0, 5.0), (2.0, 0.0), (3.0, 3.0)):
        clock.sleep(passed_s)
        assert watch.still_s() == still_s


def test_a_watcher_that_was_suspended_still_counts_a_beating_process_as_alive(clock: Clock) -> None:
    beats = itertools.count()
    assert not falls_silent(lambda: next(beats), 60.0)

    def suspended_while_it_reads() -> int:
        found = int(clock.now_s) // 15
        clock.sleep(600.0)
        return found

    assert not falls_silent(suspended_while_it_reads, 60.0), "it beat every 15 s all the while"


def test_a_process_without_beats_counts_as_silent_exactly_after_the_limit(clock: Clock) -> None:
    began_s = clock.now_s
    assert falls_silent(lambda: "beat 7", 60.0)
    assert 60.0 <= clock.now_s - began_s <= 62.0
    began_s = clock.now_s
    assert not falls_silent(lambda: "beat 7" if clock.now_s < began_s + 59 else "beat 8", 60.0)
