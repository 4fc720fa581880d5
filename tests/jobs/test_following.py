"""A queue that is away for a while costs those who follow its jobs nothing but time."""

import os
import signal
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus

from nlu.jobs.following import Follower, JobEnd
from nlu.jobs.local import LocalQueue
from nlu.jobs.queue import Job, JobState, Look, QueueContext, QueuedJob
from nlu.jobs.submissions import new_tokens
from tests.jobs.jobs import number_of, sleep


class AwayAtFirst(LocalQueue):
    """A queue that does not answer the first questions of a kind."""

    failures = 3
    ctrl_c = 0
    """so many looks at the jobs are followed by Ctrl-C"""

    def look(self, tickets):
        if self.ctrl_c:
            self.ctrl_c -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return super().look(tickets)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("connection refused")

    def outcome(self, ticket, *, fetches=True):
        self._fail()
        return super().outcome(ticket)

    def log_tail(self, ticket, lines=1):
        raise OSError("connection refused")

    def cancel(self, tickets):
        self._fail()
        super().cancel(tickets)


@pytest.fixture
def follow(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    def ended(work, failures, ctrl_c=0):
        queue = AwayAtFirst(QueueContext({"timeout_min": 5}, tmp_path, work=work))
        queue.failures, queue.ctrl_c = failures, ctrl_c
        (token,) = new_tokens(1)
        tickets = queue.submit([Job(1, str(tmp_path / "1"), (), token)])
        try:
            return Follower([QueuedJob(queue, ticket) for ticket in tickets], {token: "job 1"}, tmp_path).run()[token]
        finally:
            LocalQueue.cancel(queue, tickets)

    return ended


def test_the_result_of_a_job_is_requested_until_the_queue_answers(follow, capfd):
    assert follow(number_of, failures=3).status == 1
    said = capfd.readouterr().err
    assert said.count("local does not answer (connection refused); nlu keeps asking for its jobs") == 1
    assert "job 1: failed" in said


def test_ctrl_c_leaves_the_jobs_and_says_how_to_cancel_them(follow, capfd):
    with pytest.raises(KeyboardInterrupt):
        follow(sleep, failures=0, ctrl_c=1)
    assert "1 job continues; python -m nlu.report --follow" in capfd.readouterr().err


def job_return(status: JobStatus, value: object) -> JobReturn:
    found = JobReturn(status=status)
    found.return_value = value
    return found


@pytest.mark.parametrize(
    ("state", "outcome", "word"),
    [
        (JobState.CANCELLED, 0, "cancelled"),
        (JobState.LOST, None, "lost"),
        (JobState.LOST, 0, "done"),
        (JobState.LOST, 2, "failed"),
        (JobState.DONE, None, "done"),
        (JobState.FAILED, None, "failed"),
        (JobState.DONE, 75, "stopped"),
        (JobState.DONE, 130, "stopped"),
        (JobState.DONE, 1, "failed"),
        (JobState.DONE, job_return(JobStatus.COMPLETED, 1), "done"),
        (JobState.DONE, job_return(JobStatus.COMPLETED, False), "done"),
        (JobState.FAILED, job_return(JobStatus.FAILED, ValueError("no")), "failed"),
        (JobState.DONE, job_return(JobStatus.FAILED, 0), "failed"),
    ],
)
def test_a_word_tells_how_a_job_ended(state, outcome, word):
    assert JobEnd(Look(state), outcome).word == word


@pytest.mark.parametrize(
    ("state", "outcome", "status"),
    [
        (JobState.DONE, None, 0), (JobState.FAILED, None, None), (JobState.LOST, None, None), (JobState.DONE, 7, 7),
        (JobState.FAILED, 0, 0), (JobState.DONE, True, None), (JobState.DONE, "0", None),
        (JobState.DONE, job_return(JobStatus.COMPLETED, 3), None),
        (JobState.DONE, job_return(JobStatus.FAILED, 3), None),
        (JobState.DONE, job_return(JobStatus.COMPLETED, None), None),
    ],
)  # fmt: skip
def test_the_status_of_a_job_is_what_it_returned(state, outcome, status):
    assert JobEnd(Look(state), outcome).status == status
