"""What doctor and profile say of CUDA devices, on one."""

import json
from pathlib import Path

import pytest
import torch

from nlu.commands import profile
from nlu.diagnosis.machine import collectives, devices
from tests.training.in_process import MODEL, PLAIN, of_composed, sets
from tests.training.test_cuda import modes  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu


def test_a_sum_over_all_devices_is_right() -> None:
    found = collectives()
    assert found.mark == "ok" and "nccl " in found.says and found.says.endswith("is right")


def test_every_device_is_listed() -> None:
    found = {check.name: check for check in devices()}
    assert set(found) == {f"cuda:{number}" for number in range(torch.cuda.device_count())}
    if torch.cuda.get_device_capability() >= (8, 0):
        assert found["cuda:0"].mark == "ok"


@pytest.mark.usefixtures("modes")
def test_a_profile_has_the_time_of_operators_and_kernels_on_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [option for option in (*MODEL, *PLAIN) if option != "trainer.device=cpu"]
    given = ("trainer.device=cuda", "steps=2", "warmup=1", f"out={tmp_path}/profiled")
    of_composed(profile.main, "profile", *options, *sets(tmp_path), *given)
    printed = capsys.readouterr().out
    assert "device computes" in printed and "Self CUDA" in printed
    kept = json.loads((tmp_path / "profiled/profile.json").read_text())
    assert kept["peak_mb"] > 0 and 0 < kept["busy"] <= 1 and kept["limit_mb"] > kept["peak_mb"]
    events = json.loads((tmp_path / "profiled/trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
