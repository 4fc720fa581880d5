"""trainer.devices=auto: the number of processes that it stands for, and what a run records of it."""

import os
from pathlib import Path

import pytest
import torch
import yaml

from nlu.config.choices import node_of
from nlu.config.errors import UserError
from nlu.launching import counting, local
from nlu.launching.counting import count_of, threads_for, with_count
from nlu.launching.local import launch
from nlu.runs.folder import write_config
from nlu.training import hardware
from tests.training.in_process import TINY, composed, sets, train
from tests.training.kinds import KINDS
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
    assert (f"trainer.devices=auto is {there}: the run was begun with it" in capsys.readouterr().err) == was_other


def test_rules_of_several_devices_apply_to_their_counted_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in NODE.items():
        monkeypatch.setenv(name, value)
    options = (*TINY, *sets(tmp_path), "trainer.devices=auto", "trainer.batch_size=1", f"hydra.run.dir={tmp_path}/run")
    train(*options, status=2)
    assert "trainer.batch_size is 1 over all devices, but trainer.devices is 2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "cores", "count", "reason"),
    [
        ((), 4, 4, "4 cores can be used"),
        ((), 16, 4, "trainer.batch_size is 32, and a process should have 8 examples"),
        (("trainer.batch_size=15",), 16, 1, "trainer.batch_size is 15"),
        (("trainer.batch_size=64", "parallel=shared"), 6, 6, "6 cores can be used"),
        (("parallel=bmuf",), 4, 1, "this choice of parallel"),
        (("parallel.reduce_dtype=bfloat16",), 4, 1, "this choice of parallel"),
        (("trainer.batch_tokens=4096",), 4, 1, "is not known before"),
    ],
)
def test_auto_is_a_process_for_each_core_of_a_cpu_that_has_rows_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...],
    cores: int, count: int, reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(counting, "idle_cores", lambda: cores)
    config = composed(*sets(tmp_path), "trainer.device=cpu", "trainer.devices=auto", *options)
    counted = with_count(config, tmp_path / "run")
    assert counted.trainer.devices == count
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nlu: trainer.devices=auto is {count}: ") and reason in line
    shared = node_of("parallel", "shared")
    assert (counted.parallel == shared) == (count > 1)


def test_auto_is_one_process_where_a_loss_compares_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "idle_cores", lambda: 2)
    kind = KINDS["siamese with InfoNCE"]
    config = composed(*kind.overrides(tmp_path), "trainer.device=cpu", "trainer.devices=auto", "trainer.batch_size=32")
    assert with_count(config, tmp_path / "run").trainer.devices == 1


@pytest.mark.parametrize(("strategy", "there"), [("replicated", 2), ("shared", 3), ("replicated", 1)])
def test_auto_on_a_cpu_keeps_the_strategy_of_a_run_that_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, there: int
) -> None:
    monkeypatch.setattr(counting, "idle_cores", lambda: 2)
    options = (*sets(tmp_path), "trainer.device=cpu", "resume=auto")
    begun = composed(*options, f"trainer.devices={there}", f"parallel={strategy}")
    write_config(tmp_path, begun.to_config())
    found = with_count(composed(*options, "trainer.devices=auto"), tmp_path)
    assert (found.trainer, found.parallel) == (begun.trainer, begun.parallel)


@pytest.mark.parametrize(("given", "each", "count"), [("4", "1", 4), ("4", "2", 2), ("7", "3", 2), (None, None, 2)])
def test_processes_of_auto_divide_the_threads_that_the_environment_allows(
    monkeypatch: pytest.MonkeyPatch, given: str | None, each: str | None, count: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    with threads_for(count):
        assert os.environ.get("OMP_NUM_THREADS") == each
    assert os.environ.get("OMP_NUM_THREADS") == given


def test_idle_cores_are_those_of_the_processor_the_container_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four threads of two cores.
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(hardware, "CPUS", tmp_path)
    monkeypatch.setattr(hardware, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert hardware.idle_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 9})
    assert hardware.idle_cores() == 2, "of a core without known siblings, each thread counts"
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert hardware.idle_cores() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert hardware.idle_cores() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert hardware.idle_cores() == 1
