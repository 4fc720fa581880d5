"""trainer.devices=auto: the number of processes that it stands for, and what a run records of it."""

from pathlib import Path

import pytest
import torch
import yaml

from nlu.config.errors import UserError
from nlu.launching import local
from nlu.launching.local import count_of, launch
from nlu.runs.folder import write_config
from tests.training.in_process import TINY, composed, sets, train
from tests.training.runs import result

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
NODE = {"RANK": "0", "WORLD_SIZE": "1", "NPROC_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("gpus", "device", "environment", "count"),
    [
        (0, "auto", {}, 1),
        (3, "auto", {}, 3),
        (3, "cuda", {}, 3),
        (3, "cpu", {}, 1),
        (3, "auto", TORCHRUN, 2),
        (3, "auto", NODE, 2),
        (0, "cpu", NODE, 2),
    ],
)
def test_auto_is_every_visible_gpu_unless_the_environment_says_otherwise(
    gpus: int, device: str, environment: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # No machine of the tests has several GPUs.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert count_of("auto", device) == count
    assert count_of(5, device) == 5


@pytest.mark.thorough
def test_a_run_records_the_number_of_its_processes_and_continues_with_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = (*TINY, *sets(tmp_path), "trainer.max_duration=2st", "resume=auto", f"hydra.run.dir={tmp_path}/run")
    train(*run, "trainer.devices=auto", "trainer.stop_after=1st")
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["trainer"]["devices"] == 1
    train(*run, "trainer.devices=1")
    assert result(tmp_path / "run")["steps"] == 2
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    train(*run, "trainer.devices=auto", status=2)
    assert "trainer.devices: 1 there, 2 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "device", "there", "count"),
    [(0, "auto", 3, 3), (4, "auto", 2, 2), (4, "cpu", 3, 3), (2, "auto", 3, None), (3, "auto", 3, 3)],
)
def test_a_run_that_continues_with_auto_keeps_the_number_with_which_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpus: int, device: str,
    there: int, count: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    begun = composed(*sets(tmp_path), f"trainer.device={device}", "trainer.devices=auto", "resume=auto")
    write_config(tmp_path, begun.with_devices(there).to_config())
    started: list[int] = []
    monkeypatch.setattr(local, "spread", lambda work, devices: started.append(devices) or 0)
    if count is None:
        with pytest.raises(UserError, match=r"^trainer.devices is auto, but .* begun with 3 GPUs, and 2 are visible"):
            launch(begun, tmp_path, [])
        return
    assert launch(begun, tmp_path, []) == 0 and started == [count]
    was_other = count != count_of("auto", device)
    assert (f"trainer.devices=auto is {there}, with which the run was begun" in capsys.readouterr().err) == was_other


def test_rules_of_several_devices_apply_to_their_counted_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    options = (*TINY, *sets(tmp_path), "trainer.devices=auto", "trainer.batch_size=1", f"hydra.run.dir={tmp_path}/run")
    train(*options, status=2)
    assert "trainer.batch_size is 1 over all devices, but trainer.devices is 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
