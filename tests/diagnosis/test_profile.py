"""python -m nlu.profile: times by phase, torch's tables, what to change first, and the files."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import DeviceType

from nlu.commands import profile
from nlu.config.errors import EXIT_USER_ERROR
from nlu.data.shapes import SHAPES
from nlu.diagnosis import few_steps, profiling
from nlu.diagnosis.profiling import Profiled, Traced, findings, trace
from nlu.inference.predictor import Predictor
from nlu.tasks.classify import Classify
from nlu.training import passes, step
from nlu.training.phases import HostPhases
from tests.training.compiling import compiling
from tests.training.in_process import TINY, of_composed, sets, train, write_rows
from tests.training.runs import REPOSITORY, SAME_THREADS
from tests.training.test_phases import Clock

SHORT = ("steps=2", "warmup=1")
FINE = Profiled(
    what="", steps=1, device="", seconds={"data": 0.05, "forward": 0.4, "backward": 0.55}, examples_per_s=1,
    real_tokens_per_s=1, computed_tokens_per_s=1, peak_mb=90, limit_mb=100, busy=0.5,
)  # fmt: skip


def run_profile(*overrides: str, model: tuple[str, ...] = TINY, status: int = 0) -> None:
    of_composed(profile.main, "profile", *model, *SHORT, *overrides, status=status)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only moves where a test says so, in place of that of the measured steps."""
    clock = Clock()
    monkeypatch.setattr(step, "phases_on", lambda device: HostPhases(clock.perf_counter))
    monkeypatch.setattr(few_steps, "time", clock)
    return clock


def test_time_is_that_of_the_phase_that_took_it(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.Tensor, "backward", clock.moved_by(1.0, torch.Tensor.backward))
    monkeypatch.setattr(passes, "collate", clock.moved_by(9.0, passes.collate))
    run_profile(*sets(tmp_path), f"out={tmp_path}/profiled")
    printed = capsys.readouterr().out
    assert "input: 90% of the time nothing is computed" in printed and "NLU_CACHE" in printed
    assert re.search(r"^data +9000\.00 +90\.0%$", printed, re.MULTILINE)
    assert re.search(r"^backward +1000\.00 +10\.0%$", printed, re.MULTILINE)
    assert "module backbone." in printed and "aten::addmm" in printed
    folder = tmp_path / "profiled"
    kept = json.loads((folder / "profile.json").read_text())
    assert kept["seconds"]["data"] == 9 and kept["step_s"] == 10 and kept["findings"][0].startswith("input: 90%")
    assert {path.name for path in folder.iterdir()} == {"profile.json", "trace.json"}
    names = {str(event.get("name")) for event in json.loads((folder / "trace.json").read_text())["traceEvents"]}
    assert {"module model", "aten::addmm"} <= names


def test_a_run_that_predicts_is_measured_by_batch(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*TINY, *sets(tmp_path), "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    monkeypatch.setattr(profiling, "phases_on", lambda device: HostPhases(clock.perf_counter))
    monkeypatch.setattr(profiling, "time", clock)
    monkeypatch.setattr(Predictor, "encode", clock.moved_by(8.0, Predictor.encode))
    monkeypatch.setattr(Classify, "forward", clock.moved_by(3.0, Classify.forward))
    rows = write_rows(tmp_path / "new.tsv", 30)
    run_profile(f"run={tmp_path}/run", f"rows={rows}", "trainer.eval_batch_size=8", f"out={tmp_path}/profiled")
    printed = capsys.readouterr().out
    # One batch of 8 rows before the two that are measured, whose rows are tokenized together.
    assert "a batch of prediction, mean of 2" in printed and "input: 57% of the time" in printed
    assert re.search(r"^encoding +4000\.00 +57\.1%$", printed, re.MULTILINE)
    assert re.search(r"^forward +3000\.00 +42\.9%$", printed, re.MULTILINE)
    kept = json.loads((tmp_path / "profiled/profile.json").read_text())
    tokens = [len(line.split("\t")[0].split()) + 2 for line in rows.read_text().splitlines()]
    assert kept["examples_per_s"] == 16 / 14 and kept["real_tokens_per_s"] == sum(tokens[8:24]) / 14
    run_profile(f"run={tmp_path}/run", status=EXIT_USER_ERROR)
    assert "but rows is not set; set both for predictions, or leave out both" in capsys.readouterr().err
    run_profile(f"run={tmp_path}/run", "rows=nowhere.tsv", status=EXIT_USER_ERROR)
    assert "error: rows is 'nowhere.tsv', which does not exist" in capsys.readouterr().err
    run_profile(f"run={tmp_path}/run", f"rows={write_rows(tmp_path / 'few.tsv', 5)}", "trainer.eval_batch_size=8")
    # The warm-up uses them up, so that they are predicted again.
    assert "a batch of prediction, mean of 1" in capsys.readouterr().out


def test_a_compiled_run_is_refused_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_profile(*sets(tmp_path), "trainer.compile=true", status=EXIT_USER_ERROR)
    assert "trainer.compile is true, but the device is a CPU" in " ".join(capsys.readouterr().err.split())


def test_a_compiled_run_is_warm_before_its_steps_are_measured(tmp_path: Path) -> None:
    with compiling() as watched, mock.patch.object(few_steps, "warm_up", watched.warm_up):
        run_profile(*sets(tmp_path), "trainer.compile=true")
    assert watched.warm[0][1] == watched.now[1] <= SHAPES


def test_the_profilers_own_messages_are_not_printed(tmp_path: Path) -> None:
    # A fresh process: torch reads how much it may print when it is imported.
    done = subprocess.run(
        [sys.executable, "-m", "nlu.profile", *TINY, *SHORT, *sets(tmp_path)],
        cwd=tmp_path, env={**os.environ, **SAME_THREADS, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/launchers"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not re.search("^(INFO|STAGE|USDT|WARNING|\\[W)", done.stdout + done.stderr, re.MULTILINE)
    assert "Trace start time" not in done.stdout + done.stderr and "aten::addmm" in done.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"seconds": {"data": 0.06, "forward": 0.94}}, ["input: 6% of the time"]),
        ({"seconds": {"encoding": 0.04, "writing": 0.02, "forward": 0.94}}, ["input: 6% of the time"]),
        ({"peak_mb": 91}, ["memory: 91 of 100 MB"]),
        ({"peak_mb": 91, "limit_mb": None}, []),
        ({"busy": 0.49}, ["device: it computes in 49% of the time; raise trainer.batch_size"]),
        ({"busy": None}, []),
    ],
)
def test_what_passes_a_limit_is_named_with_a_remedy(changed: dict[str, Any], said: list[str]) -> None:
    found = list(findings(replace(FINE, **changed)))
    assert len(found) == len(said) and all(map(str.startswith, found, said))


class Layers(nn.Module):
    """A module with two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])

    def forward(self, x_NI: Tensor) -> Any:
        for layer in self.layers:
            x_NI = layer(x_NI)
        return x_NI.sum()


def test_layers_of_one_kind_share_a_row_of_the_tables() -> None:
    model = Layers()

    found = trace(model, torch.device("cpu"), lambda: model(torch.ones(32, 64)).backward(), 2, None)
    calls = {row.key: row.count for row in found.rows}
    assert calls["module layers.*"] == 4 and calls["module model"] == 2
    assert all("aten::addmm" in table and "# of Calls" in table for table in found.tables())
    assert found.busy(1.0) is None


def test_a_device_is_busy_while_its_kernels_run() -> None:
    def row(device: DeviceType, taken_us: float, is_range: bool = False) -> Any:
        return SimpleNamespace(device_type=device, self_device_time_total=taken_us, is_user_annotation=is_range)

    # The time of a kernel is that of the operator that started it too, and of the range that it ran in.
    rows = [
        row(DeviceType.CPU, 7e5),
        row(DeviceType.CUDA, 5e5),
        row(DeviceType.CUDA, 2e5),
        row(DeviceType.CUDA, 1e6, True),
    ]
    assert Traced(rows, steps=2, on_cuda=True).busy(1.0) == pytest.approx(0.35)
