"""Jobs of this machine outlive whoever submitted them, and are found, looked at and cancelled by others."""

import os
import signal
import time
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.launching import local_queue
from nlu.launching.local_queue import LocalQueue
from nlu.launching.queue import Job, JobRefused, JobState, Look
from nlu.launching.queues import Place, open_queue
from nlu.launching.submissions import new_tokens
from tests.launching.jobs import number_of, sleep

SETTINGS = {"timeout_min": 5, "nodes": 1}


def queue(folder: Path, work=None, **settings) -> LocalQueue:
    return LocalQueue(Place({**SETTINGS, **settings}, folder, work=work))


def jobs(count: int) -> list[Job]:
    return [Job(number, f"/{number}", (), token) for number, token in enumerate(new_tokens(count))]


def until_ended(watched: LocalQueue, ids: list[str], limit_s: float = 60) -> dict[str, Look]:
    deadline_s = time.monotonic() + limit_s
    while True:
        looks = watched.look(ids)
        if all(look.state.is_final for look in looks.values()):
            return dict(looks)
        assert time.monotonic() < deadline_s, looks
        time.sleep(0.05)


@pytest.fixture
def importable(monkeypatch):
    """Have the jobs find the modules of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_what_a_job_returned_is_read_by_another_queue_of_the_same_folder(tmp_path, importable):
    tickets = queue(tmp_path, number_of).submit(jobs(2))
    other, ids = queue(tmp_path), [ticket.id for ticket in tickets]
    assert [look.state for look in until_ended(other, ids).values()] == [JobState.DONE] * 2
    assert [other.outcome(id) for id in ids] == [0, 1]
    assert other.find([ticket.job for ticket in tickets]) == tickets
    assert other.find(jobs(1)) == [None], "another submission"


def test_a_job_that_is_cancelled_and_one_that_is_killed_are_told_apart(tmp_path, importable, monkeypatch):
    # This one does not listen, and is killed after a while.
    monkeypatch.setattr(local_queue, "CANCEL_WAIT_S", 0.5)
    watched = queue(tmp_path, sleep)
    first, second = [ticket.id for ticket in watched.submit(jobs(2))]
    while not watched.log_tail(second):
        time.sleep(0.05)
    assert {look.state for look in watched.look([first, second]).values()} == {JobState.RUNNING}
    os.killpg(int(second.rpartition("/")[2]), signal.SIGKILL)
    until_ended(watched, [second])
    assert watched.log_tail(second) == ["sleeps"]
    other = queue(tmp_path)
    other.cancel([first, second])
    found = until_ended(other, [first, second])
    assert found == {
        first: Look(JobState.CANCELLED),
        second: Look(JobState.LOST, reason="its process ended without a word"),
    }
    assert other.outcome(first) is other.outcome(second) is None


def test_a_token_that_begins_like_anothers_is_another_job(tmp_path, importable):
    watched, token = queue(tmp_path, sleep), new_tokens(1)[0]
    (ticket,) = watched.submit([Job(10, "/10", (), f"{token}-10")])
    assert queue(tmp_path).find([Job(1, "/1", (), f"{token}-1")]) == [None]
    os.killpg(int(ticket.id.rpartition("/")[2]), signal.SIGKILL)


def test_a_job_holds_no_pipe_and_hears_no_ctrl_c_of_whoever_submitted_it(tmp_path, importable):
    submitted = queue(tmp_path, sleep)
    (ticket,) = submitted.submit(jobs(1))
    process = int(ticket.id.rpartition("/")[2])
    try:
        assert os.getsid(process) == process != os.getsid(0)
        assert {os.readlink(f"/proc/{process}/fd/{number}") for number in (0, 1, 2)} == {"/dev/null"}
    finally:
        os.killpg(process, signal.SIGKILL)


def test_what_submitit_does_not_take_is_refused_with_what_it_says(tmp_path):
    with pytest.raises(JobRefused, match="submitit cannot start jobs here: .*correct what hydra.launcher sets"):
        queue(tmp_path, number_of, nodes=2).submit(jobs(1))


def test_ids_and_queues_that_there_are_not_are_refused(tmp_path):
    with pytest.raises(UserError, match="57 is no job of this machine"):
        queue(tmp_path).look(["57"])
    with pytest.raises(UserError, match="slrum is no queue of this version; nearest: slurm"):
        open_queue("slrum", Place({}, tmp_path))
