"""What stands between a run and its tracker, with trackers of the tests' own."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nlu.tracking import guarded
from nlu.tracking.guarded import Guarded
from nlu.tracking.tracker import Beginning, Outcome, Point


class Listening:
    """Keeps its calls, in order, and fails or hangs at the requested one."""

    def __init__(self, fails_at: str = "", error: BaseException | None = None):
        self.told: list[Any] = []
        self.threads: set[str] = set()
        self._fails_at, self._error, self.may_go = fails_at, error, threading.Event()

    def _take(self, what: str, *told: Any) -> None:
        self.told.append((what, *told))
        self.threads.add(threading.current_thread().name)
        if what == self._fails_at:
            if self._error is not None:
                raise self._error
            self.may_go.wait()

    def start(self, beginning: Beginning) -> None:
        self._take("start", beginning.name)

    def log(self, point: Point) -> None:
        self._take("log", point.step, dict(point.values))

    def flush(self) -> None:
        self._take("flush")

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        self._take("end", outcome, dict(results))


BEGINNING = Beginning("a", None, Path(), {}, 0, lambda: [])


def all_calls(guard: Guarded) -> None:
    guard.start(BEGINNING)
    guard.log(Point(1, {"loss": 2.0, "lr": 0.5}))
    guard.log(Point(1, {"loss": 1.0, "f1": 0.25}))
    guard.log(Point(2, {"loss": 0.5}))
    guard.flush()
    guard.log(Point(3, {"loss": 0.25}))
    guard.end("finished", {"best": 0.75})
    guard.end("failed", {})


EVERY = [
    ("start", "a"), ("log", 1, {"loss": 1.0, "lr": 0.5, "f1": 0.25}), ("log", 2, {"loss": 0.5}), ("flush",),
    ("log", 3, {"loss": 0.25}), ("end", "finished", {"best": 0.75}),
]  # fmt: skip


def test_a_step_is_logged_once_with_all_its_values_and_an_end_once() -> None:
    tracker = Listening()
    all_calls(Guarded(tracker))
    assert tracker.told == EVERY and tracker.threads == {"tracker"}


@pytest.mark.parametrize(("what", "last"), [("start", 1), ("log", 2), ("flush", 4), ("end", 6)])
def test_a_failing_tracker_is_reported_once_and_switched_off(
    what: str, last: int, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Listening(what, ValueError("no\n  disk"))
    all_calls(Guarded(tracker))
    assert tracker.told == EVERY[:last]
    (record,) = caplog.records
    doing = {"start": "starting", "log": "logging", "flush": "flushing", "end": "ending"}[what]
    assert f"the tracker Listening failed while {doing} (ValueError: no disk) and is now off" in record.getMessage()


@pytest.mark.parametrize(("what", "limit"), [("start", "START_LIMIT_S"), ("flush", "LIMIT_S")])
def test_a_hanging_tracker_is_abandoned_after_its_limit(
    what: str, limit: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guarded, limit, 0.05)
    tracker = Listening(what)
    all_calls(Guarded(tracker))
    assert tracker.told[-1] == (what, "a") if what == "start" else tracker.told == EVERY[:4]
    (record,) = caplog.records
    assert f"the tracker Listening hangs while {what}ing, for 0.05 s, and is now off" in record.getMessage()
    tracker.may_go.set()
