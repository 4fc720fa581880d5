"""Several trials in one job. The jobs are real processes of this machine here, and Slurm's in tests/slurm."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.jobs import shared, shared_host
from nlu.jobs.local import LocalQueue
from nlu.jobs.queue import Job, JobRefused, JobState, QueueContext, Ticket
from nlu.jobs.shared import SharedQueue
from nlu.jobs.submissions import new_tokens
from tests.jobs.jobs import until_told


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Have the jobs find the modules of the tests, and end soon without trials."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def here(context: QueueContext) -> LocalQueue:
    settings = {key: value for key, value in context.settings.items() if key not in ("cpus", "gpus")}
    return LocalQueue(replace(context, settings=settings))


def queue(folder: Path, work=until_told, jobs: Callable = here, **settings) -> SharedQueue:
    return SharedQueue(QueueContext({"trials_per_job": 2, **settings}, folder, work=work), jobs)


def trials(folder: Path, count: int, first: int = 0) -> list[Job]:
    return [
        Job(first + number, f"{folder}/{first + number}", ("lr=0.1", "trial={number:1}"), token)
        for number, token in enumerate(new_tokens(count))
    ]


def until(condition: Callable[[], object], limit_s: float = 200) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def began(job: Job) -> list[int]:
    file = Path(f"{job.folder}.began")
    return list(map(int, file.read_text().split())) if file.exists() else []


def let_end(*jobs: Job) -> None:
    for job in jobs:
        Path(f"{job.folder}.ends").touch()


def state(own: SharedQueue, ticket: Ticket) -> JobState:
    return own.look([ticket.id])[ticket.id].state


def job_ids(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / ".submitit/shared/jobs").iterdir())


@pytest.fixture
def hosts(tmp_path):
    """Ends the jobs that a test leaves."""
    yield
    own = queue(tmp_path, None)
    own._jobs.cancel(list(own._job_ids().values()))


def test_a_job_runs_two_trials_at_a_time_and_takes_the_next_when_one_ends(tmp_path, hosts, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,GPU-7")
    own, jobs = queue(tmp_path, cpus=6), trials(tmp_path, 3)
    first, second = own.submit(jobs[:2])
    until(lambda: began(jobs[0]) and began(jobs[1]))
    monkeypatch.setattr(shared, "PATIENCE_S", 1000.0)
    (third,) = own.submit(jobs[2:])
    assert state(own, first) is JobState.RUNNING and state(own, third) is JobState.WAITING and not began(jobs[2])
    let_end(jobs[0])
    until(lambda: began(jobs[2]))
    let_end(*jobs)
    until(lambda: all(state(own, ticket) is JobState.DONE for ticket in (first, second, third)))
    threads, places = "+hydra.job.env_set.OMP_NUM_THREADS='3'", ["4,5", "6,GPU-7"]
    found = [own.outcome(ticket.id).return_value for ticket in (first, second, third)]
    assert [each[:3] for each in found] == [["lr=0.1", "trial={number:1}", threads]] * 3
    assert [each[3] for each in found] == [
        f"+hydra.job.env_set.CUDA_VISIBLE_DEVICES='{places[place]}'" for place in (0, 1, 0)
    ]
    assert len(job_ids(tmp_path)) == 1 and own.log_tail(first.id) == ["job 0 ends"]
    # Another command sees the same, and finds trials by their tokens.
    other = queue(tmp_path, None)
    assert state(other, second) is JobState.DONE and other.find(jobs) == [first, second, third]


def test_a_cancelled_trial_ends_while_the_others_of_its_job_continue(tmp_path, hosts):
    own, jobs = queue(tmp_path), trials(tmp_path, 2)
    first, second = own.submit(jobs)
    until(lambda: began(jobs[0]) and began(jobs[1]))
    queue(tmp_path, None).cancel([first.id])
    until(lambda: state(own, first) is JobState.CANCELLED)
    assert own.outcome(first.id).return_value == 75 and state(own, second) is JobState.RUNNING
    let_end(jobs[1])
    until(lambda: state(own, second) is JobState.DONE)


def test_trials_of_a_job_that_ends_stop_and_a_waiting_one_gets_another_job(tmp_path, hosts, monkeypatch):
    own, jobs = queue(tmp_path), trials(tmp_path, 3)
    first, second = own.submit(jobs[:2])
    until(lambda: began(jobs[0]) and began(jobs[1]))
    monkeypatch.setattr(shared, "PATIENCE_S", 0.0)
    (third,) = own.submit(jobs[2:])
    until(lambda: state(own, third) is JobState.RUNNING and began(jobs[2]))
    assert len(job_ids(tmp_path)) == 2, "the first one is full"
    (job,) = (id for token, id in own._job_ids().items() if shared_host.taken_by(own._base / first.id) == token)
    # As Slurm does shortly before the end of its time.
    os.kill(int(job.rpartition("/")[2]), signal.SIGTERM)
    until(lambda: state(own, first) is state(own, second) is JobState.DONE)
    assert [own.outcome(ticket.id).return_value for ticket in (first, second)] == [75, 75]
    assert state(own, third) is JobState.RUNNING


def test_trials_of_a_killed_job_are_lost_and_a_new_one_gets_another_job(tmp_path, hosts, monkeypatch):
    monkeypatch.setattr(shared, "GRACE_S", 0.5)
    own, jobs = queue(tmp_path), trials(tmp_path, 1)
    (first,) = own.submit(jobs)
    until(lambda: began(jobs[0]))
    (id,) = own._job_ids().values()
    process = int(id.rpartition("/")[2])
    (task,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for pid in (process, int(task)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: state(own, first) is JobState.LOST)
    # Or each later look would submit a job for the dead trial too.
    assert not own._open_trials()
    (second,) = own.submit(trials(tmp_path, 1, first=1))
    until(lambda: state(own, second) is JobState.RUNNING)
    let_end(*jobs)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nodes": 2}, "trials_per_job is 2, but hydra.launcher.nodes is 2; they share a process; set it to 1"),
        ({"gpus": 3}, "trials_per_job is 2, but hydra.launcher.gpus is 3; set it to a multiple, such as 2"),
        ({"cpus": 5}, "hydra.launcher.cpus is 5; set it to a multiple"),
    ],
)
def test_a_job_that_cannot_be_divided_is_refused(tmp_path, settings, said):
    with pytest.raises(JobRefused, match=said):
        queue(tmp_path, **settings).submit(trials(tmp_path, 1))
    assert not (tmp_path / ".submitit").exists()


def test_only_trials_that_fit_into_their_share_share_a_job(tmp_path):
    with pytest.raises(UserError, match="but only the trials of a search share a job; leave it out"):
        queue(tmp_path).check([Job(0, "run", ("seed=1",), "token")])
    context = QueueContext(
        {"trials_per_job": 2, "gpus": 2}, tmp_path, compose=lambda job: {"trainer": {"devices": 2, "device": "auto"}}
    )
    with pytest.raises(UserError, match="trainer.devices is 2, but 2 trials share a job of 2 GPUs; set .*gpus to 4"):
        SharedQueue(context).check(trials(tmp_path, 2))
