"""What every queue of jobs does: on this machine, and on the Slurm that `make test-slurm` starts."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nlu.jobs import local as local_queue
from nlu.jobs.local import LocalQueue
from nlu.jobs.queue import Job, JobState, Look, QueueContext, Ticket
from nlu.jobs.slurm import SlurmQueue
from nlu.jobs.submissions import new_tokens
from tests.jobs.jobs import number_returned, sleep

PATIENCE_S = 120.0
Queue = LocalQueue | SlurmQueue


class Kind:
    """A kind of queue: `open` gives one of a folder, with the work of its jobs."""

    def __init__(self, made: type[Queue]):
        self._made = made

    def open(self, folder: Path, work: Callable[[Job], Any] | None = None) -> Queue:
        return self._made(QueueContext({"timeout_min": 5}, folder, work=work))

    def process_of(self, ticket: Ticket) -> int:
        """Return the process of a job that works."""
        if self._made is LocalQueue:
            return int(ticket.id.rpartition("/")[2])
        from tests.slurm.works import process_of

        return process_of(ticket)


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    # Jobs find the modules of the tests there.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    # The work of these tests does not listen, and is killed after a while.
    monkeypatch.setattr(local_queue, "CANCEL_WAIT_S", 0.5)
    if request.param == "local":
        yield Kind(LocalQueue)
        return
    from tests.slurm.works import jobs_cancelled

    with jobs_cancelled():
        yield Kind(SlurmQueue)


def jobs(folder: Path, count: int) -> list[Job]:
    return [Job(number, str(folder / f"{number}"), (), token) for number, token in enumerate(new_tokens(count))]


def ended(queue: Queue, tickets: list[Ticket]) -> list[Look]:
    """Wait until jobs have ended, and return what is said of each."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        looks = queue.look(tickets)
        if all(look.state.is_final for look in looks.values()):
            return [looks[ticket.id] for ticket in tickets]
        assert time.monotonic() < deadline_s, looks
        time.sleep(0.1)


def test_another_queue_of_the_folder_finds_the_jobs_and_reads_their_results(tmp_path: Path, kind: Kind) -> None:
    tickets = kind.open(tmp_path, number_returned).submit(jobs(tmp_path, 2))
    other = kind.open(tmp_path)
    assert other.find([ticket.job for ticket in tickets]) == tickets
    assert other.find(jobs(tmp_path, 1)) == [None], "another submission"
    assert [look.state for look in ended(other, tickets)] == [JobState.DONE] * 2
    assert [other.outcome(ticket).return_value for ticket in tickets] == [0, 1]


def test_a_cancelled_job_and_a_killed_one_have_different_states(tmp_path: Path, kind: Kind) -> None:
    first, second, third = tickets = kind.open(tmp_path, sleep).submit(jobs(tmp_path, 3))
    queue = kind.open(tmp_path)
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(queue.log_tail(ticket) for ticket in tickets):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert {look.state for look in queue.look(tickets).values()} == {JobState.RUNNING}
    os.kill(kind.process_of(second), signal.SIGKILL)
    assert ended(queue, [second])[0].state is JobState.LOST
    queue.cancel([first, second])
    states = [look.state for look in ended(queue, [first, second])]
    # A process of this machine that ends on request leaves a result; this one is killed in the end.
    assert states == [JobState.LOST if isinstance(queue, LocalQueue) else JobState.CANCELLED, JobState.LOST]
    assert queue.look([third])[third.id].state is JobState.RUNNING
    assert queue.outcome(first) is queue.outcome(second) is None
    queue.cancel([third])
