"""Rows of a file shared by jobs on two nodes of a real Slurm: one is killed, and the output has the bytes of one."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nlu.jobs.submissions import Submissions
from tests.inference.runs import predict, trained, unlabelled
from tests.slurm.works import PATIENCE_S, ask, kill_process
from tests.training.kinds import TASKS, write
from tests.training.runs import REPOSITORY

pytestmark = [pytest.mark.slurm]

ROWS = 50_000


def test_the_output_of_four_jobs_of_which_one_is_killed_has_the_bytes_of_one_process(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path)
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], ROWS))
    order = (f"run={run}", f"input={tmp_path}/new.jsonl", "device=cpu")
    predict(*order, f"output={tmp_path}/a.csv")
    shared = (f"output={tmp_path}/b.csv", "jobs=4", "hydra/launcher=slurm", "hydra.launcher.cpus=4")
    command = [sys.executable, "-m", "nlu.predict", *order, *shared, f"hydra.sweep.dir={tmp_path}/jobs"]
    process = subprocess.Popen(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline_s = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob(".b.csv.jobs/*/000001.claim-0")):
        assert process.poll() is None and time.monotonic() < deadline_s, ask("squeue", "--states=all")
        time.sleep(0.05)
    tickets = [one.ticket for one in Submissions(tmp_path / "jobs").read() if one.ticket]
    nodes = set(ask("squeue", "--noheader", "--array", "--format=%N").split())
    kill_process(tickets[0])
    said = process.communicate(timeout=3 * PATIENCE_S)[0]
    assert process.returncode == 0 and nodes == {"n1", "n2"}, said
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert said.count(": done") == 3, said
