"""Where the time of a run goes, by clocks that only move where the test says so."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.runs.checkpoint import Checkpoints
from nlu.runs.records import TIME_COLUMNS, read_rows
from nlu.runs.state import Window
from nlu.tasks.classify import Classify
from nlu.training import best, loop, meter, passes, step
from nlu.training.phases import DevicePhases, HostPhases
from nlu.training.ranks import Ranks
from tests.training.in_process import TINY, sets, train


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds

    def moved_by(self, seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and takes this long."""

        def taking_time(*arguments: Any, **named: Any) -> Any:
            self.move(seconds)
            return work(*arguments, **named)

        return taking_time


def test_an_inner_phase_does_not_count_for_the_outer_one() -> None:
    clock = Clock()
    phases = HostPhases(clock.perf_counter)
    clock.move(1)
    phases.begin("backward")
    clock.move(2)
    with pytest.raises(ZeroDivisionError), phases.within("forward"):
        clock.move(4)
        raise ZeroDivisionError
    clock.move(8)
    assert phases.take() == {"other": 1, "backward": 10, "forward": 4}
    clock.move(16)
    assert phases.take() == {"backward": 16}
    clock.move(32)
    phases.start()
    assert phases.take() == {"other": 0}


@dataclass
class Device:
    """A device that works off what a host hands to it."""

    host: Clock
    free_at_s: float = 0.0

    def run(self, seconds: float) -> None:
        """Hand work to the device, which takes this long."""
        self.free_at_s = max(self.free_at_s, self.host.now_s) + seconds

    def event(self) -> "Event":
        return Event(self)


class Event:
    """What `torch.cuda.Event` says of such a device."""

    def __init__(self, device: Device):
        self.device = device

    def record(self) -> None:
        self.at_s = max(self.device.free_at_s, self.device.host.now_s)

    def query(self) -> bool:
        return self.device.host.now_s >= self.at_s

    def synchronize(self) -> None:
        self.device.host.now_s = max(self.device.host.now_s, self.at_s)

    def elapsed_time(self, end_event: "Event") -> float:
        assert self.query() and end_event.query(), "only times of events that were reached can be read"
        return 1e3 * (end_event.at_s - self.at_s)


@pytest.mark.parametrize(("gathering_s", "waiting_s"), [(4.0, 4.0), (13.0, 13.0 + 3.0 + 3.0)])
def test_a_device_waits_for_data_only_while_it_has_nothing_else_to_do(gathering_s: float, waiting_s: float) -> None:
    # A step takes the device 10 seconds. It waits for the rows of the first one in any case.
    host = Clock()
    device = Device(host)
    phases = DevicePhases(device.event)
    taken = Window()
    for number in range(3):
        phases.begin("data")
        host.move(gathering_s)
        phases.begin("forward")
        device.run(3)
        phases.begin("backward")
        device.run(7)
        phases.begin("other")
        taken.add_costs(phases.take(), 0.0)
        assert taken.seconds.get("backward", 0.0) <= 7 * number, "the host does not wait for the last step"
    phases.catch_up()
    taken.add_costs(phases.take(), 0.0)
    assert taken.seconds == pytest.approx({"data": waiting_s, "forward": 9, "backward": 21, "other": 0})
    assert sum(taken.seconds.values()) == pytest.approx(host.now_s)


def test_the_columns_of_a_run_add_up_to_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def takes(holder: Any, name: str, seconds: float) -> None:
        monkeypatch.setattr(holder, name, clock.moved_by(seconds, getattr(holder, name)))

    monkeypatch.setattr(step, "phases_on", lambda device: HostPhases(clock.perf_counter))
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(meter, "time", clock)
    takes(passes, "collate", 2)
    takes(Classify, "forward", 3)
    takes(torch.Tensor, "backward", 5)
    takes(Ranks, "sum_gradients", 7)
    takes(step, "update", 11)
    takes(Checkpoints, "save_best", 13)
    takes(Checkpoints, "save_last", 17)
    takes(best, "log_evaluation", 19)
    train(
        *TINY, *sets(tmp_path), "trainer.max_duration=6st", "trainer.log_interval=2st", "trainer.eval_interval=3st",
        "trainer.save_interval=0", "trainer.accumulation=2", "trainer.eval_batch_size=21",
        f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    rows = read_rows(tmp_path / "run/train.tsv")
    # Two micro-batches in each step; each evaluation is one batch, and its first one is the best so far.
    of_steps = {"data_s": 8, "transfer_s": 0, "forward_s": 12, "backward_s": 20, "reduce_s": 14, "optimizer_s": 22}
    for number, row in enumerate(rows):
        expected = of_steps | {"other_s": 0}
        expected["evaluation_s"] = 0 if number == 0 else 3 + 19
        found = {column: row[column] for column in expected}
        assert found == expected
        assert row["peak_mb"] > 20  # type: ignore[operator]
    # The evaluation at step 3 writes the best checkpoint and the last state. That at step 6 is no better, and its state
    # is saved after the row.
    assert [row["saving_s"] for row in rows] == [0, 13 + 17, 0]
    total = sum(float(row[column] or 0) for row in rows for column in TIME_COLUMNS)
    assert total == clock.now_s - 17
    for row, examples in zip(rows, (27, 27, 27), strict=True):
        assert row["examples_per_s"] == pytest.approx(examples / sum(of_steps.values()))
