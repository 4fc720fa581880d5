"""Trials of a search that share jobs of a real Slurm."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nlu.jobs.__main__ import main as jobs_main
from nlu.jobs.queue import QueueContext
from nlu.jobs.shared import SharedQueue
from tests.launchers import searches
from tests.launchers.searches import runs, states
from tests.slurm.works import PATIENCE_S, ask

pytestmark = [pytest.mark.slurm]

SHARED = (
    "lr=interval(0.001,1)", "hydra/launcher=slurm", "hydra.launcher.trials_per_job=2", "hydra.launcher.cpus=6",
    "hydra.launcher.gpus=2",
)  # fmt: skip


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 2 * PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, ask("squeue", "--states=all")
        time.sleep(0.1)


def job_ids(folder: Path) -> list[str]:
    """The jobs of Slurm in which trials of a search run or ran."""
    own = SharedQueue(QueueContext({"trials_per_job": 2}, folder))
    return sorted(own._job_ids().values(), key=int)


def test_trials_share_one_job_with_its_gpus_and_cores(tmp_path, monkeypatch):
    monkeypatch.delitem(searches.ENVIRONMENT, "OMP_NUM_THREADS")
    folder, own = tmp_path / "s", ("hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=2")
    said = searches.search(folder, *SHARED, *own)
    assert states(folder) == ["COMPLETE"] * 5, said
    assert len(job_ids(folder)) == 1
    held = {tuple((folder / f"{number}/runs.txt").read_text().split()[2:]) for number in range(5)}
    assert held == {("0", "3"), ("1", "3")}, "each trial has a GPU and three cores"


@pytest.mark.thorough
def test_trials_of_lost_shared_jobs_continue_and_one_is_stopped_for_good(tmp_path):
    folder = tmp_path / "s"
    own = (*SHARED, "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=4", "steps=20", "step_s=2")
    process = searches.start(folder, *own)
    try:
        until(lambda: all((folder / f"{number}/state.json").exists() for number in range(4)))
        cancelled, requeued = job_ids(folder)
        jobs_main([str(folder), "--stop", "3"])
        ask("scancel", cancelled)
        ask("scontrol", "requeue", requeued)
        said = process.communicate(timeout=6 * PATIENCE_S)[0]
    finally:
        process.kill()
    assert states(folder) == ["COMPLETE"] * 3 + ["PRUNED"], said
    # Each continues from its state.
    assert all(runs(folder, number)[1] > 0 for number in range(3)) and len(runs(folder, 3)) == 1, said
    assert "failed" not in said
