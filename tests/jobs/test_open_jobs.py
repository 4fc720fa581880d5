"""A command that begins again finds the jobs of its folder that still run, and what they hold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nlu.jobs.listing import open_jobs
from nlu.jobs.local import LocalQueue
from nlu.jobs.queue import Job, QueueContext
from nlu.jobs.submissions import Submissions, new_tokens
from tests.jobs.jobs import sleep

SETTINGS = {"timeout_min": 5}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalQueue]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr("nlu.jobs.local.CANCEL_WAIT_S", 0.5)
    yield (found := LocalQueue(QueueContext(SETTINGS, tmp_path, work=sleep)))
    found.cancel([one.ticket for one in Submissions(tmp_path).read() if one.ticket is not None])


def test_open_jobs_are_found_also_those_whose_submission_was_cut_off(tmp_path: Path, queue: LocalQueue) -> None:
    gpus = ("lr=1", "+hydra.job.env_set.CUDA_VISIBLE_DEVICES='1,GPU-2'")
    jobs = [Job(number, str(tmp_path / str(number)), gpus, token) for number, token in enumerate(new_tokens(4))]
    record = Submissions(tmp_path)
    record.begin(jobs, "local", SETTINGS, "train")
    known, cut, ended = queue.submit(jobs[:3])
    record.submitted([known, ended])
    queue.cancel([ended])
    found = {number: row.submitted for number, row in open_jobs(tmp_path).items()}
    assert [one.ticket for one in found.values()] == [known, cut] and list(found) == [0, 1]
    assert found[1].job.variable("CUDA_VISIBLE_DEVICES") == "1,GPU-2" and found[1].job.variable("OMP") is None
    assert [one.job.number for one in Submissions(tmp_path).read()] == [0, 1, 2], "the fourth was never submitted"
