"""What stands between a run and its tracker, with trackers of the tests' own, and what trackers make of a histogram."""

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nlu.runs.tallies import BOUNDS_B, Histogram
from nlu.tracking import guarded
from nlu.tracking.guarded import Guarded
from nlu.tracking.tensorboard import _raw
from nlu.tracking.tracker import Beginning, Outcome, Point
from nlu.tracking.wandb import _spread


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


def histogram(*parts: tuple[float, int]) -> Histogram:
    found = Histogram()
    for low, count in parts:
        found.put(low, count)
    return found


def test_bins_of_a_histogram_are_what_each_library_takes() -> None:
    lows = [low for low, _ in BOUNDS_B]
    first, second = lows.index(1.0), lows.index(100.0)
    one = histogram((1.0, 3), (lows[first + 1], 2), (100.0, 5), (math.nan, 7))
    found = _raw(one)
    ends = [BOUNDS_B[first], BOUNDS_B[first + 1], BOUNDS_B[second]]
    assert (found["min"], found["max"], found["num"]) == (1.0, ends[2][1], 10)
    assert found["bucket_limits"] == [1.0, ends[0][1], ends[1][1], 100.0, ends[2][1]]
    assert found["bucket_counts"] == [0, 3, 2, 0, 5]
    middles = [(sum(each) / 2, count) for each, count in zip(ends, (3, 2, 5), strict=True)]
    assert found["sum"] == pytest.approx(sum(middle * count for middle, count in middles))
    assert found["sum_squares"] == pytest.approx(sum(middle**2 * count for middle, count in middles))
    spread = _spread(one)
    assert spread is not None
    counts, edges = spread
    assert counts.tolist() == [3, 2, *[0] * (second - first - 2), 5]
    assert edges.tolist() == [*lows[first : second + 1], BOUNDS_B[second][1]]
    none = histogram((math.nan, 2))
    assert _spread(none) is None and _raw(none)["bucket_counts"] == [0, 0] and _raw(none)["num"] == 0
    far = _raw(histogram((-math.inf, 4)))
    assert (far["min"], far["max"]) == (-1e7, -1e6)
