"""What doctor and profile say of CUDA devices, on one."""

import json
from pathlib import Path

import pytest
import torch

from nlu import profile
from nlu.diagnosis.machine import collectives, devices
from tests.training.in_process import MODEL, PLAIN, of_composed, sets
from tests.training.test_cuda import modes  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu


def test_a_sum_over_all_devices_is_right() -> None:
    found = collectives()
    assert found.mark == "ok" and found.says.startswith("nccl ") and "the sum is right" in found.says


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
    assert "peak memory" in capsys.readouterr().out
    kept = json.loads((tmp_path / "profiled/profile.json").read_text())
    taken_s = {one["name"]: one["own_s"] for one in kept["operators"]}
    # Operators that start no kernel take no time of the device; the slowest one comes first.
    assert next(iter(taken_s.values())) > 0 and kept["measured"]["peak_mb"] > 0
    # Each kernel counts once, as part of its operator.
    assert not [name for name in taken_s if name.startswith(("void ", "Memcpy", "Memset"))]
    assert any(name.startswith("aten::") for name, own_s in taken_s.items() if own_s)
    assert any(module["forward_s"] > 0 and module["backward_s"] > 0 for module in kept["modules"])
    events = json.loads((tmp_path / "profiled/trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    assert (tmp_path / "profiled/memory.png").exists()
