"""A queue is found by its name, also that of a launcher in another package."""

import os
import subprocess
import sys
from pathlib import Path

from nlu.jobs.queue import Job, Ticket
from nlu.jobs.submissions import Submissions

LAUNCHER = """
from hydra_plugins.queue_launcher import queue_launcher
from nlu.jobs.queue import JobState, Look


class Far:
    name = "far"

    def __init__(self, place):
        self.node = place.settings["node"]

    def look(self, tickets):
        return {ticket.id: Look(JobState.RUNNING, self.node) for ticket in tickets}


class FarLauncher(queue_launcher.QueueLauncher):
    queue = "far"
    open_queue = staticmethod(Far)
"""


def test_jobs_lists_a_job_of_a_launcher_in_another_package(tmp_path: Path) -> None:
    package = tmp_path / "packages/hydra_plugins/far_launcher"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "far_launcher.py").write_text(LAUNCHER)
    job, record = Job(3, str(tmp_path / "run"), (), "token"), Submissions(tmp_path / "run")
    record.begin([job], "far", {"node": "n17"}, "the command")
    record.submitted([Ticket(job, "far-8")])
    path = os.pathsep.join([str(tmp_path / "packages"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "nlu.jobs", "run"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in ("running", "n17", "far-8"))
