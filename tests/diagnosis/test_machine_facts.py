"""The facts of a machine as doctor tells them, for machines that are made up: every number is another."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nlu.diagnosis import machine
from nlu.diagnosis.check import Check

GIB = 2**30


def by_name(checks: object) -> dict[str, Check]:
    return {check.name: check for check in checks}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("used", "mark", "says", "remedy"),
    [
        (7, "warning", "torch computes with 7, and 6 of 24 cores may be used", "OMP_NUM_THREADS=6"),
        (6, "ok", "torch computes with 6, and 6 of 24 cores may be used", ""),
    ],
)
def test_threads_are_held_against_cores(
    monkeypatch: pytest.MonkeyPatch, used: int, mark: str, says: str, remedy: str
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 6)
    monkeypatch.setattr(os, "cpu_count", lambda: 24)
    monkeypatch.setattr(torch, "get_num_threads", lambda: used)
    found = machine.threads()
    assert found.mark == mark and says in found.says and remedy in found.remedy


def test_each_device_has_its_own_name_capability_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = [("Alpha", 8, 6, 30, 40), ("Beta", 9, 0, 10, 80), ("Gamma", 5, 2, 7, 8)]
    monkeypatch.setattr(machine, "packed_kernel", lambda device: None if device.index == 1 else object())
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
    assert found["cuda:1"].says == "Beta, capability 9.0, 10.0 of 80.0 GiB free; rows are padded inside attention"
    assert found["cuda:1"].mark == "warning"
    assert found["cuda:2"].mark == "broken" and "no kernels" in found["cuda:2"].says


@pytest.mark.parametrize(("status", "error"), [(0, None), (11, "a process ended with status 11")])
def test_a_process_of_the_sum_that_dies_is_an_error(
    monkeypatch: pytest.MonkeyPatch, status: int, error: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "in_processes", lambda work, count: status)
    if error is None:
        assert machine.collectives().says == "the sum over 2 processes by gloo is right"
    else:
        with pytest.raises(RuntimeError, match=error):
            machine.collectives()


def test_the_plugins_of_a_checkout_are_found_without_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = "from nlu.diagnosis.machine import package; print([check.mark for check in package()])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=machine.PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['ok']"
