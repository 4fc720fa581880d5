"""Runs on a real Slurm that are stopped and continued: after each event the run of a job ends in the bytes of one to
which nothing happened.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nlu.jobs.slurm import WORK
from nlu.reports.runs import find_runs
from tests.slurm.slow import STEP_S
from tests.slurm.works import PATIENCE_S, ask, jobs_cancelled
from tests.training.in_process import train
from tests.training.runs import REPOSITORY, TINY, files, result

pytestmark = [pytest.mark.slurm]

LENGTH = (
    "trainer.batch_size=8", "trainer.device=cpu", "optimizer.lr=3e-3", "trainer.max_duration=400st",
    "trainer.eval_interval=200st", "trainer.log_interval=20st", "trainer.save_interval=100st",
    "method._target_=tests.slurm.slow.Slow", "trusted_packages=[tests]",
)  # fmt: skip
SLURM = ("hydra/launcher=slurm", "hydra.launcher.timeout_min=60")
KEPT = ("metrics", "best", "last", "steps", "examples", "seed", "pruned")
BEGUN_ROWS = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return (*files(tmp_path_factory.mktemp("data")), *TINY, *LENGTH)


@pytest.fixture(scope="module")
def unbroken(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run without Slurm comes to."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    train(*data, f"hydra.run.dir={folder}")
    return outcome(folder)


@pytest.fixture(scope="module")
def unbroken_in_two(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of two processes of one machine comes to."""
    folder = tmp_path_factory.mktemp("two") / "run"
    run(*data, f"hydra.run.dir={folder}", "trainer.devices=2")
    return outcome(folder)


def outcome(run_dir: Path) -> dict[str, Any]:
    """What must not depend on where a run went and how often."""
    weights = {name: (run_dir / f"checkpoints/{name}/model.safetensors").read_bytes() for name in ("best-1", "last")}
    told = result(run_dir)
    return {**weights, **{key: told[key] for key in KEPT}, "valid": (run_dir / "valid.tsv").read_text()}


def begin(*overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nlu.train", *overrides]
    # On any machine an event must reach a job before its 400 steps are done.
    env = {STEP_S: "0.01", **os.environ}
    return subprocess.Popen(
        command, cwd=REPOSITORY, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run(*overrides: str, status: int = 0, patience_s: float = 3 * PATIENCE_S) -> str:
    """Run the command to its end and return what it said."""
    process = begin(*overrides)
    try:
        said = process.communicate(timeout=patience_s)[0]
    finally:
        process.kill()
    assert process.returncode == status, f"exit {process.returncode}, not {status}\n{said}\n{logs()}"
    return said


def logs() -> str:
    """What Slurm says of its jobs and nodes, for a test that fails."""
    return ask("squeue", "--states=all", "--format=%i %T %N %r") + ask("sinfo", "-N", "--format=%N %T %E")


def submit(folder: Path, *overrides: str) -> str:
    """Submit a run and return its job's number without waiting for it."""
    run(*overrides, *SLURM, "hydra.launcher.wait=false", f"hydra.run.dir={folder}")
    return job_of(folder)


def job_of(folder: Path) -> str:
    (file,) = folder.glob(f".submitit/*/*{WORK}")
    return file.name.removesuffix(WORK)


def has_begun(folder: Path) -> None:
    """Wait until a run has logged some steps."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (folder / "train.tsv").exists() or len((folder / "train.tsv").read_text().splitlines()) <= BEGUN_ROWS:
        assert time.monotonic() < deadline_s, logs()
        time.sleep(0.05)


def restarts(job: str) -> int:
    found = re.search(r"Restarts=(\d+)", ask("scontrol", "show", "job", job))
    assert found
    return int(found[1])


EVENTS = {
    "nothing": (),
    "USR2": ("scancel", "--signal=USR2"),
    "scontrol requeue": ("scontrol", "requeue"),
}


@pytest.fixture(scope="module")
def broken(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, str]]]:
    """The folder of a run and the number of its job by event; all of them side by side."""
    base = tmp_path_factory.mktemp("broken")
    with ThreadPoolExecutor() as pool:
        folders = [base / str(place) for place in range(len(EVENTS))]
        jobs = pool.map(lambda folder: submit(folder, *data), folders)
        found = dict(zip(EVENTS, zip(folders, jobs, strict=True), strict=True))
    for name, (folder, job) in found.items():
        has_begun(folder)
        if EVENTS[name]:
            ask(*EVENTS[name], job)
    yield found


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Several tests look at the jobs that were broken side by side; those of the others end with their test."""
    with nullcontext() if "broken" in request.fixturenames else jobs_cancelled():
        yield


@pytest.mark.parametrize(("event", "count"), [("nothing", 0), ("USR2", 1), ("scontrol requeue", 1)])
def test_a_job_with_this_event_is_requeued_and_reaches_the_same_bytes(broken, data, unbroken, event, count):
    folder, job = broken[event]
    run(*data, *SLURM, f"hydra.run.dir={folder}")
    assert restarts(job) == count and outcome(folder) == unbroken


def test_a_job_that_is_refused_says_why_in_the_log_of_its_folder(data, tmp_path):
    (tmp_path / "bad.tsv").write_text("no label\n")
    bad = [f"data.train={tmp_path}/bad.tsv" if one.startswith("data.train=") else one for one in data]
    run(*bad, *SLURM, f"hydra.run.dir={tmp_path}/run", status=2)
    runs, (sentence,) = find_runs([tmp_path])
    assert not runs and sentence.startswith(f"{tmp_path}/run failed before it began: ") and "bad.tsv:1" in sentence


@pytest.mark.thorough
def test_a_run_longer_than_its_time_limit_reaches_the_same_bytes_in_several_jobs(data, tmp_path, monkeypatch):
    # Slurm counts in minutes, and asks this job to go 10 to 40 seconds after its start: the steps take 50.
    often = (*data, "trainer.save_interval=20st")
    train(*often, f"hydra.run.dir={tmp_path}/unbroken")
    monkeypatch.setenv(STEP_S, "0.125")
    folder = tmp_path / "run"
    minute = ("hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=20")
    run(*often, *SLURM, f"hydra.run.dir={folder}", *minute, patience_s=6 * PATIENCE_S)
    assert outcome(folder) == outcome(tmp_path / "unbroken")
    assert restarts(job_of(folder)) >= 1


def test_a_run_over_two_nodes_equals_one_of_two_processes_on_one_node(data, unbroken_in_two, tmp_path):
    run(*data, *SLURM, f"hydra.run.dir={tmp_path}/run", "hydra.launcher.nodes=2")
    assert outcome(tmp_path / "run") == unbroken_in_two
