"""A search over a real Slurm: what happens to one job costs that job's trial a while, and no trial its bytes."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nlu.jobs.queue import Ticket
from nlu.jobs.submissions import Submissions
from tests.launchers.searches import states
from tests.slurm.cluster import begin_node, lose_node
from tests.slurm.works import PATIENCE_S, ask
from tests.training.in_process import train
from tests.training.runs import REPOSITORY, TINY, files, weights

pytestmark = [pytest.mark.slurm]

LENGTH = (
    "trainer.batch_size=8", "trainer.device=cpu", "trainer.max_duration=400st", "trainer.eval_interval=100st",
    "trainer.log_interval=20st", "trainer.save_interval=50st",
)  # fmt: skip
SEARCH = (
    "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random", "hydra.sweeper.pruner=none",
    "hydra/launcher=slurm", "hydra.sweeper.n_jobs=4",
)  # fmt: skip
RATES = (1e-3, 2e-3, 3e-3, 4e-3)


def begun(folder: Path) -> None:
    """Wait until every trial has logged some steps."""
    tables = [folder / str(number) / "train.tsv" for number in range(len(RATES))]
    wait_until(lambda: all(table.exists() and len(table.read_text().splitlines()) > 2 for table in tables))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, ask("squeue", "--states=all")
        time.sleep(0.2)


def submitted(folder: Path) -> dict[int, Ticket]:
    """The tickets of the trials' jobs."""
    return {one.job.number: one.ticket for one in Submissions(folder).read() if one.ticket is not None}


def search(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nlu.train", *SEARCH, f"hydra.sweep.dir={folder}", *overrides]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_search_survives_a_cancelled_a_requeued_and_a_lost_job(tmp_path):
    data, folder = (*files(tmp_path), *TINY, *LENGTH), tmp_path / "s"
    process = search(folder, *data, f"optimizer.lr=choice({','.join(map(str, RATES))})")
    try:
        begun(folder)
        jobs = {number: ticket.id for number, ticket in submitted(folder).items()}
        ask("scancel", jobs[0])
        ask("scontrol", "requeue", jobs[1])
        node = ask("squeue", "--noheader", f"--jobs={jobs[2]}", "--format=%N").strip()
        lose_node(node)
        try:
            said, _ = process.communicate(timeout=4 * PATIENCE_S)
        finally:
            begin_node(node)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert states(folder) == ["COMPLETE"] * len(RATES), said
    assert "trial 0: its job" in said and "it continues" in said
    first, *_, again = (one.job.overrides for one in Submissions(folder).read() if one.job.number == 0)
    assert "take=true" in again and "take=true" not in first
    for number in (0, 1, 2):
        overrides = (folder / str(number) / "overrides").read_text().split()
        (rate,) = (override for override in overrides if "optimizer.lr=" in override)
        train(*data, rate.lstrip("- "), f"hydra.run.dir={tmp_path}/{number}")
        assert weights(folder / str(number), "best-1") == weights(tmp_path / str(number), "best-1")


def test_a_search_started_again_asks_slurm_for_no_second_job_of_any_trial(tmp_path):
    # A job takes a whole node, so that two of the four wait.
    data, folder = (*files(tmp_path), *TINY, *LENGTH, "hydra.launcher.cpus=8"), tmp_path / "s"
    drawn = f"optimizer.lr=choice({','.join(map(str, RATES))})"

    def jobs() -> list[str]:
        return sorted(ask("squeue", "--noheader", "--format=%i %T").splitlines())

    process = search(folder, *data, drawn)
    wait_until(lambda: sorted(job.split()[1] for job in jobs()) == ["PENDING"] * 2 + ["RUNNING"] * 2)
    process.kill()
    process.communicate()
    before, process = jobs(), search(folder, *data, drawn)
    try:
        wait_until(lambda: (folder / "sweep.log").read_text().count("its job goes on") == 4)
        during = jobs()
        said, _ = process.communicate(timeout=4 * PATIENCE_S)
    finally:
        process.kill()
    print("before the kill:", *before, "after the restart:", *during, sep="\n    ")
    assert process.returncode == 0 and states(folder) == ["COMPLETE"] * len(RATES), said
    assert {job.split()[0] for job in during} <= {job.split()[0] for job in before}
    assert sorted(one.job.number for one in Submissions(folder).read()) == [0, 1, 2, 3]


def test_only_the_first_process_reports_a_trial_over_two_nodes(tmp_path):
    data, folder = (*files(tmp_path), *TINY, *LENGTH), tmp_path / "s"
    short = ("trainer.max_duration=20st", "trainer.eval_interval=10st", "hydra.launcher.nodes=2")
    process = search(folder, *data, *short, "optimizer.lr=choice(1e-3,2e-3)", "hydra.sweeper.n_jobs=2")
    said, _ = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0 and states(folder) == ["COMPLETE"] * 2, said
    assert (folder / "0/log.rank1.txt").exists() and said.count("finished") == 2
