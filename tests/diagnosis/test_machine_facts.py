"""The facts of a machine as doctor tells them, for machines that are made up: every number is another."""

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nlu.diagnosis import machine
from nlu.diagnosis.check import Check
from nlu.training import host_memory

GIB = 2**30


def by_name(checks: object) -> dict[str, Check]:
    return {check.name: check for check in checks}  # type: ignore[attr-defined]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "used", "mark", "says", "remedy"),
    [
        ("150000 100000", 3, "warning", "but the container may use 1.5 cores", "OMP_NUM_THREADS=1"),
        ("50000 100000", 3, "warning", "but the container may use 0.5 cores", "OMP_NUM_THREADS=1"),
        ("max 100000", 6, "ok", "6 of 24 usable; torch computes with 6 and waits with 5", ""),
        ("900000 100000", 7, "warning", "torch computes with 7", "OMP_NUM_THREADS=6"),
        ("900000 100000", 4, "warning", "torch computes with 4", "set it to 6"),
    ],
)
def test_threads_are_held_against_cores_and_what_a_container_may_use(
    group: Path, monkeypatch: pytest.MonkeyPatch, quota: str, used: int, mark: str, says: str, remedy: str
) -> None:
    (group / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(machine, "usable_cores", lambda: 6)
    monkeypatch.setattr(os, "cpu_count", lambda: 24)
    monkeypatch.setattr(torch, "get_num_threads", lambda: used)
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 5)
    found = by_name(machine.threads())["threads"]
    assert found.mark == mark and says in found.says and remedy in found.remedy


@pytest.mark.parametrize(("load", "mark"), [(9.5, "warning"), (8.75, "ok")])
def test_a_load_above_one_and_a_half_of_the_cores_is_reported(
    monkeypatch: pytest.MonkeyPatch, load: float, mark: str
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 6)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 1.0, 99.0))
    found = by_name(machine.threads())["load"]
    assert found.mark == mark and found.says.startswith(f"{load:.1f} processes") and "6 cores" in found.says


def test_memory_is_what_the_container_leaves(group: Path) -> None:
    (group / "memory.max").write_text(f"{GIB * 3 // 4}\n")
    (group / "memory.current").write_text(f"{GIB // 4}\n")
    found = by_name(machine.memory())["memory"]
    assert found.says == "0.5 of 0.8 GiB free" and found.mark == "warning"
    # Files that were read count as used, and are given up.
    (group / "memory.stat").write_text(f"anon {GIB // 8}\ninactive_file {GIB // 8}\n")
    assert by_name(machine.memory())["memory"].says == "0.6 of 0.8 GiB free"


def test_memory_without_a_limit_is_that_of_the_machine(group: Path) -> None:
    (group / "memory.max").write_text("max\n")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert f"of {total / GIB:.1f} GiB free" in by_name(machine.memory())["memory"].says


@pytest.mark.parametrize(("devices", "mark"), [(2, "warning"), (1, "ok")])
def test_little_shared_memory_matters_to_several_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int, mark: str
) -> None:
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    # What the superuser could still have is more than what is available.
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=30, f_bfree=400, f_frsize=GIB // 200))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    found = by_name(machine.memory())["shared memory"]
    assert found.mark == mark and ("0.15 GiB free" in found.says or "0.1 GiB free" in found.says)


@pytest.mark.parametrize(
    ("limits", "mark", "says", "remedy"),
    [
        ((256, 4096), "warning", "256 at most", "ulimit -n 4096"),
        ((256, resource.RLIM_INFINITY), "warning", "256 at most", "ulimit -n 65536"),
        ((65536, 1048576), "ok", "65,536 at most", ""),
    ],
)
def test_few_open_files_come_with_the_command_that_allows_more(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], mark: str, says: str, remedy: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits if kind == resource.RLIMIT_NOFILE else (1, 1))
    found = by_name(machine.memory())["open files"]
    assert (found.mark, found.says, found.remedy) == (mark, says, remedy)


def test_each_device_has_its_own_name_capability_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [("Alpha", 8, 6, 30, 40), ("Beta", 9, 0, 10, 80), ("Gamma", 5, 2, 7, 8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(facts))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (facts[number][3] * GIB, facts[number][4] * GIB))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties",
        lambda number: SimpleNamespace(name=facts[number][0], major=facts[number][1], minor=facts[number][2]),
    )  # fmt: skip
    found = by_name(machine.devices())
    assert found["cuda:0"].says == "Alpha, capability 8.6, 30.0 of 40.0 GiB free" and found["cuda:0"].mark == "ok"
    assert found["cuda:1"].says.startswith("Beta, capability 9.0, 10.0 of 80.0 GiB free; others use it")
    assert found["cuda:1"].mark == "warning"
    assert found["cuda:2"].mark == "broken" and "no kernels" in found["cuda:2"].says
