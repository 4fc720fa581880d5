"""Threads that spin while cores are idle, and sleep while they are busy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nlu.config import waiting
from nlu.config.waiting import let_threads_sleep, let_threads_spin, may_spin
from nlu.training import spinning
from nlu.training.spinning import FIRST_CALM_S, LONGEST_CALM_S, Judge, gnu_openmp, waited_s

# For a second after an operator that all threads share, the main thread does nothing. How long another thread then
# computed or wanted to compute tells whether it spins, on any machine: beside other programs it has to wait for a core
# instead.
WANTED = """
import json, time
import torch
from pathlib import Path
from nlu.training.spinning import Team, gnu_openmp

def wanted_s():
    read = {thread.name: (thread / "schedstat").read_text() for thread in Path("/proc/self/task").iterdir()}
    return {name: sum(map(int, text.split()[:2])) / 1e9 for name, text in read.items()}

def spun_s():
    torch.set_num_threads(2)
    torch.ones(2_000_000).exp()
    before = wanted_s()
    time.sleep(1)
    after = wanted_s()
    return max(after[thread] - before[thread] for thread in after if thread in before)

alone = spun_s()
team = Team(gnu_openmp(), 2)
beside = spun_s()
team.end()
# Its threads are still ending.
time.sleep(1)
print(json.dumps([alone, beside, spun_s()]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="the team's size is that of a machine with 2 cores")
def test_threads_do_not_spin_while_a_further_team_exists() -> None:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "30000000000", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", WANTED], env=environment, capture_output=True, text=True, check=True)
    alone, beside, afterwards = json.loads(done.stdout)
    assert alone > 0.5
    assert beside < 0.2
    assert afterwards > 0.5


def test_threads_spin_only_after_cores_were_idle_for_a_while() -> None:
    judge = Judge()
    assert not judge.see(0.001, FIRST_CALM_S / 2)
    assert not judge.see(0.05, 10.0)
    assert not judge.see(0.001, FIRST_CALM_S * 0.9)
    assert judge.see(0.001, FIRST_CALM_S * 0.2)
    assert judge.see(0.1, 1.0)
    assert not judge.see(0.2, 0.25)


def test_a_program_that_comes_and_goes_lets_threads_spin_ever_less_often() -> None:
    judge = Judge()
    waits_s = []
    for _ in range(10):
        waited = 0.0
        while not judge.see(0.0, 0.25):
            waited += 0.25
        waits_s.append(waited + 0.25)
        judge.see(0.3, 0.25)
    assert waits_s == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    # After a long calm it is forgotten.
    for _ in range(int(LONGEST_CALM_S) * 8 + 1):
        judge.see(0.0, 0.25)
    judge.see(0.3, 0.25)
    assert not judge.see(0.0, 0.75)
    assert judge.see(0.0, 0.25)


def test_what_a_user_has_chosen_is_kept() -> None:
    for chosen in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "passive"}):
        environment = dict(chosen)
        let_threads_sleep(environment)
        let_threads_spin(environment)
        assert environment == chosen
        assert not may_spin(environment)


def test_only_processes_that_train_spin() -> None:
    environment: dict[str, str] = {}
    let_threads_sleep(environment)
    assert environment == {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    # A job of a cluster inherits these, and begins with the second call.
    let_threads_spin(environment)
    assert may_spin(environment)
    let_threads_sleep(environment)
    assert may_spin(environment)


@pytest.mark.parametrize(
    "also", [{"LOCAL_WORLD_SIZE": "2"}, {"WORLD_SIZE": "4"}, {"OMP_PROC_BIND": "true"}, {"OMP_NUM_THREADS": "2,1"}]
)
def test_ranks_and_bound_threads_sleep_even_if_their_parent_spins(also: dict[str, str]) -> None:
    environment = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "30000", **also}
    let_threads_spin(environment)
    assert environment["GOMP_SPINCOUNT"] == "0"


def test_threads_sleep_where_many_more_of_them_would_have_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for threads, spins in ((None, True), ("56", True), ("55", False), ("1", False)):
        environment = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = threads
        let_threads_spin(environment)
        assert may_spin(environment) is spins


@pytest.mark.parametrize("text", [None, "0 0 0\n", ""])
def test_threads_sleep_where_linux_does_not_tell_how_long_they_wait(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr(waiting, "DELAYS", tmp_path / "schedstat")
    environment = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    let_threads_spin(environment)
    assert not may_spin(environment)


def test_delays_that_cannot_be_read_count_as_busy_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("")
    monkeypatch.setattr(spinning, "TASKS", tmp_path)
    assert waited_s() == {}
    monkeypatch.setattr(spinning, "TASKS", tmp_path / "none")
    assert waited_s() == {}


def test_the_library_and_the_delays_of_this_process_are_found() -> None:
    assert gnu_openmp() is not None
    assert waited_s().keys() >= {str(os.getpid())}
