"""python -m nlu.profile: the right bottleneck in small runs, and what it prints and writes."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nlu import profile
from nlu.config.errors import EXIT_USER_ERROR
from nlu.diagnosis import profiled_prediction, profiling
from nlu.diagnosis.traced import trace
from nlu.inference.predictor import Predictor
from nlu.tasks.classify import Classify
from nlu.training import passes, step
from nlu.training.phases import HostPhases
from tests.training.in_process import TINY, of_composed, sets, train, write_rows
from tests.training.test_phases import Clock

SHORT = ("steps=2", "warmup=1")


def run_profile(*overrides: str, model: tuple[str, ...] = TINY, status: int = 0) -> None:
    of_composed(profile.main, "profile", *model, *SHORT, *overrides, status=status)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only moves where a test says so, in place of that of the measured steps."""
    clock = Clock()
    monkeypatch.setattr(step, "phases_on", lambda device: HostPhases(clock.perf_counter))
    monkeypatch.setattr(profiling, "time", clock)
    monkeypatch.setattr(profiling, "limit_gflops", lambda precision, device: 100.0)
    return clock


def backward_takes(seconds: float, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "backward", clock.moved_by(seconds, torch.Tensor.backward))


def first_finding(printed: str) -> str:
    found = re.search(r"What to change first\n(?:1\. (\w+):|(nothing))", printed)
    assert found is not None
    return found[1] or found[2]


def test_a_slow_collate_is_an_input_bottleneck(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backward_takes(1.0, clock, monkeypatch)
    monkeypatch.setattr(passes, "collate", clock.moved_by(9.0, passes.collate))
    run_profile(*sets(tmp_path), f"out={tmp_path}/profiled", "trainer.max_duration=100ep")
    printed = capsys.readouterr().out
    assert first_finding(printed) == "input"
    assert re.search(r"^data +9000\.00 +90\.0%$", printed, re.MULTILINE)
    assert re.search(r"^backward +1000\.00 +10\.0%$", printed, re.MULTILINE)
    # 16 of 27 rows and then 11 are two steps of an epoch.
    assert "the whole run  400 steps, about 1:06:40" in printed
    folder = tmp_path / "profiled"
    kept = json.loads((folder / "profile.json").read_text())
    assert kept["measured"]["seconds"]["data"] == 9 and kept["findings"][0]["name"] == "input"
    assert (kept["total_steps"], kept["run_s"]) == (400, 4000)
    assert {path.name for path in folder.iterdir()} == {"profile.json", "trace.json", "memory.png"}
    names = {str(event.get("name")) for event in json.loads((folder / "trace.json").read_text())["traceEvents"]}
    assert {"nlu.phase data", "nlu.phase forward", "nlu.phase optimizer", "aten::addmm"} <= names
    assert any(name.startswith("nlu.module backbone.") for name in names)


def test_a_run_that_predicts_is_measured_by_batch(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*TINY, *sets(tmp_path), "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    monkeypatch.setattr(profiled_prediction, "phases_on", lambda device: HostPhases(clock.perf_counter))
    monkeypatch.setattr(profiled_prediction, "time", clock)
    monkeypatch.setattr(profiled_prediction, "limit_gflops", lambda precision, device: 100.0)
    monkeypatch.setattr(Predictor, "encode", clock.moved_by(8.0, Predictor.encode))
    monkeypatch.setattr(Classify, "forward", clock.moved_by(3.0, Classify.forward))
    rows = write_rows(tmp_path / "new.tsv", 30)
    run_profile(f"run={tmp_path}/run", f"rows={rows}", "trainer.eval_batch_size=8", f"out={tmp_path}/profiled")
    printed = capsys.readouterr().out
    # One batch of 8 rows before the two that are measured, whose rows are tokenized together.
    assert "a batch of prediction, mean of 2" in printed and first_finding(printed) == "input"
    assert re.search(r"^encoding +4000\.00 +57\.1%$", printed, re.MULTILINE)
    assert re.search(r"^forward +3000\.00 +42\.9%$", printed, re.MULTILINE)
    kept = json.loads((tmp_path / "profiled/profile.json").read_text())
    assert kept["examples_per_s"] == 16 / 14 and kept["run_s"] is None
    tokens = [len(line.split("\t")[0].split()) + 2 for line in rows.read_text().splitlines()]
    assert kept["measured"]["real_tokens"] == sum(tokens[8:24]) / 2
    run_profile(f"run={tmp_path}/run", status=EXIT_USER_ERROR)
    assert "but rows is not set; set both for predictions, or leave out both" in capsys.readouterr().err
    run_profile(f"run={tmp_path}/run", "rows=nowhere.tsv", status=EXIT_USER_ERROR)
    assert "error: rows is 'nowhere.tsv', which does not exist" in capsys.readouterr().err
    run_profile(f"run={tmp_path}/run", f"rows={write_rows(tmp_path / 'few.tsv', 5)}", "trainer.eval_batch_size=8")
    # The warm-up uses them up, so that they are predicted again.
    assert "a batch of prediction, mean of 1" in capsys.readouterr().out


class Twice(nn.Module):
    """A module with two layers, of which the second has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
        self.fixed = nn.Linear(64, 64).requires_grad_(False)

    def forward(self, x_NI: Tensor) -> Any:
        for layer in self.layers:
            x_NI = layer(x_NI)
        with torch.no_grad():
            unused = self.fixed(x_NI)
        return x_NI.sum() + unused.sum()


def test_forward_and_backward_are_those_of_the_module_that_an_operator_ran_in() -> None:
    model = Twice()

    def one_step(phases: HostPhases) -> None:
        phases.begin("forward")
        total = model(torch.ones(32, 64))
        phases.begin("backward")
        total.backward()

    found = trace(model, torch.device("cpu"), one_step, 2, None)
    by_name = {one.name: one for one in found.modules}
    assert by_name["layers.*"].modules == 2 and by_name["fixed"].modules == 1
    assert by_name["layers.*"].forward_s > 0 and by_name["layers.*"].backward_s > 0
    assert by_name["fixed"].forward_s > 0 and by_name["fixed"].backward_s == 0
    calls = {one.name: one.calls for one in found.operators}
    # Three layers; in the gradient each weight that is trained is a product, and so is the input of the second layer.
    assert calls["aten::addmm"] == 3 and calls["aten::mm"] == 3


def test_the_time_of_traced_passes_is_that_of_their_steps() -> None:
    model = Twice()
    took_s = []

    def one_step(phases: HostPhases) -> None:
        phases.begin("data")
        time.sleep(0.05)
        began_s = time.perf_counter()
        phases.begin("forward")
        total = model(torch.ones(32, 64))
        time.sleep(0.02)
        phases.begin("backward")
        total.backward()
        phases.begin("other")
        took_s.append(time.perf_counter() - began_s)

    found = trace(model, torch.device("cpu"), one_step, 2, None)
    # Waiting for rows is not part of them.
    assert found.passes_s == pytest.approx(sum(took_s) / 2, rel=0.1)
