"""Jobs of this machine outlive the command that submitted them, and are found, looked at and cancelled by others."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from submitit.core.utils import JobPaths

from nlu.commands.jobs import main as jobs_main
from nlu.config.errors import UserError
from nlu.jobs import local as local_queue
from nlu.jobs.following import follow, open_jobs
from nlu.jobs.local import LocalQueue, processes
from nlu.jobs.queue import Job, JobState, QueueContext, Ticket, open_queue
from nlu.jobs.slurm import SlurmQueue
from nlu.jobs.submissions import Submissions, new_tokens
from tests.jobs.jobs import number_of, until_told, visible_gpus

SETTINGS = {"timeout_min": 5}


def queue(folder: Path, work=None, **settings) -> LocalQueue:
    return LocalQueue(QueueContext({**SETTINGS, **settings}, folder, work=work))


def jobs(count: int) -> list[Job]:
    return [Job(number, f"/{number}", (), token) for number, token in enumerate(new_tokens(count))]


def until(condition, limit_s: float = 60) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def until_ended(watched: LocalQueue, tickets: list[Ticket]) -> None:
    until(lambda: all(look.state.is_final for look in watched.look(tickets).values()))


@pytest.fixture
def importable(monkeypatch):
    """Have the jobs find the modules of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.parametrize(
    ("named", "count", "seen"),
    [
        ("4,GPU-5,6", None, "4,GPU-5,6"), ("4,GPU-5,6", 2, "4,GPU-5"), ("4,5", 0, ""), ("", None, ""),
        (None, None, None), (None, 2, "0,1"),
    ],
)  # fmt: skip
def test_a_job_sees_the_gpus_of_its_command_or_the_first_of_them(tmp_path, importable, monkeypatch, named, count, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    watched = queue(tmp_path, visible_gpus, **({} if count is None else {"gpus": count}))
    (ticket,) = watched.submit(jobs(1))
    until_ended(watched, [ticket])
    assert watched.outcome(ticket) == seen


def test_ids_and_queues_that_there_are_not_are_refused(tmp_path):
    with pytest.raises(UserError, match="57 is not a job of this machine"):
        queue(tmp_path).look([Ticket(jobs(1)[0], "57", "57_0_log.err")])
    with pytest.raises(UserError, match="slrum is not a queue of nlu or of an installed launcher; nearest: slurm"):
        open_queue("slrum", QueueContext({}, tmp_path))


ELSEWHERE = """
import json, sys
from dataclasses import replace
from pathlib import Path
from nlu.jobs.local import this_machine
from tests.jobs.jobs import sleep
from tests.jobs.test_local import jobs, queue
there = queue(Path(sys.argv[1]), sleep)
(ticket,) = there.submit([replace(job, machine=this_machine()) for job in jobs(1)])
print(json.dumps([ticket.id, ticket.log, ticket.job.token, ticket.job.machine]), flush=True)
sys.stdin.read()
"""
UNSHARED = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]


@contextmanager
def job_elsewhere(folder: Path):
    """The ticket of a job that was submitted on another machine: with a separate host name, processes and /proc."""
    probe = [*UNSHARED, "hostname far"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot have a machine of another name")
    process = subprocess.Popen(
        [*UNSHARED, 'hostname far; exec "$@"', "sh", sys.executable, "-c", ELSEWHERE, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        id, log, token, machine = json.loads(process.stdout.readline())
        yield Ticket(Job(0, "/0", (), token, machine), id, log)
    finally:
        process.communicate()


def test_a_job_of_another_machine_that_shares_the_folder_is_never_judged_here(tmp_path, importable):
    with job_elsewhere(tmp_path) as ticket:
        assert ticket.id.startswith("far/")
        look = queue(tmp_path).look([ticket])[ticket.id]
        assert (look.state, look.node, look.is_certain) == (JobState.RUNNING, "far", False)
        assert look.reason.startswith(
            "it is a process of far, and only there it can be seen whether it lives, and be cancelled"
        )
        with pytest.raises(UserError, match="job 0 of far: only there .* where far is gone, run python -m nlu.jobs"):
            queue(tmp_path).cancel([ticket])
        assert queue(tmp_path).find([ticket.job]) == [ticket]


def test_a_job_whose_controller_is_killed_alone_ends_too(tmp_path, importable):
    watched = queue(tmp_path, until_told)
    (ticket,) = watched.submit([replace(jobs(1)[0], folder=str(tmp_path / "job"))])
    began = tmp_path / "job.began"
    until(lambda: began.is_file() and began.read_text().endswith("\n"))
    os.kill(int(ticket.id.rpartition("/")[2]), signal.SIGKILL)
    until(lambda: not Path("/proc", began.read_text().strip()).exists())


def test_a_process_whose_command_was_cut_off_before_it_gave_it_its_work_is_no_job(tmp_path, importable, monkeypatch):
    def cut_off(*_):
        raise KeyboardInterrupt

    (job,) = jobs(1)
    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(JobPaths, "move_temporary_file", cut_off)
        queue(tmp_path, number_of).submit([job])
    assert list(processes(job.token))
    assert queue(tmp_path).find([job]) == [None]
    deadline_s = time.monotonic() + 10
    while list(processes(job.token)):
        assert time.monotonic() < deadline_s, "it would wait for a minute"
        time.sleep(0.05)


def test_a_job_of_a_machine_that_is_gone_counts_as_running_until_it_is_forgotten(tmp_path, capsys):
    (job,) = jobs(1)
    far = replace(job, machine="far other-boot pid:[1]")
    record = Submissions(tmp_path)
    record.begin([far], "local", SETTINGS, "train")
    with pytest.raises(UserError, match="far was about to start job 0, and only there it can be seen whether it lives"):
        open_jobs(tmp_path)
    record.submitted([Ticket(far, f"far/{job.token}/12", str(tmp_path / ".submitit" / job.token / "12_0_log.err"))])
    (found,) = open_jobs(tmp_path).values()
    assert (found.state, found.node, found.is_certain) == (JobState.RUNNING, "far", False)
    assert found.reason.endswith(f"where far is gone, run python -m nlu.jobs {tmp_path} --forget 0")
    assert jobs_main([str(tmp_path), "--forget", "0"]) == 0 and open_jobs(tmp_path) == {}


@pytest.mark.parametrize(
    ("machine", "is_away"),
    [
        ("here b1 pid:[1]", False), ("here b1 pid:[2]", True), ("other b1 pid:[1]", False), ("here b0 pid:[2]", False),
        ("other b0 pid:[1]", True), ("here", False), ("other", True), ("", False),
    ],
)  # fmt: skip
def test_a_container_is_another_machine_and_a_restarted_one_is_the_same(monkeypatch, machine, is_away):
    monkeypatch.setattr(local_queue, "this_machine", lambda: "here b1 pid:[1]")
    assert local_queue.is_elsewhere(machine) is is_away


@pytest.mark.parametrize(
    ("given", "base"),
    [("a/.submitit/%j", "a/.submitit"), ("a/50%j/.submitit/%j", "a"), ("a/x_%A_%a/b", "a"), ("a", "a")],
)
def test_job_files_lie_above_the_first_folder_that_is_named_by_an_id(tmp_path, importable, given, base):
    watched = queue(tmp_path, number_of, submitit_folder=str(tmp_path / given))
    (ticket,) = watched.submit(jobs(1))
    until_ended(watched, [ticket])
    assert watched.outcome(ticket) == 0
    assert Path(ticket.log).parent == tmp_path / base / ticket.job.token
    assert not list(tmp_path.rglob("*%*"))


class Runs:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def write_program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def crafted_folder(folder: Path, name: str, job: Job, file: Path) -> None:
    """Make a folder of a submission, as a stranger may hand it over: its job's result runs a command when loaded."""
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(("success", Runs(f"touch {folder}/ran"))))
    record = Submissions(folder)
    record.begin([job], name, SETTINGS, "python -m nlu.train")
    id = f"{socket.gethostname()}/{job.token}/57" if name == "local" else "57"
    record.submitted([Ticket(job, id, str(file.with_name("57_0_log.err")))])


@pytest.mark.parametrize("name", ["local", "slurm"])
def test_nothing_that_lies_in_a_folder_runs_when_its_jobs_are_listed_and_followed(tmp_path, name, monkeypatch, capsys):
    (job,) = jobs(1)
    file = tmp_path / ".submitit" / job.token / "57_0_result.pkl"
    crafted_folder(tmp_path, name, job, file)
    if name == "slurm":
        file.with_name("57_submitted.pkl").write_bytes(pickle.dumps(Runs(f"touch {tmp_path}/ran")))
        write_program(tmp_path / "squeue", "echo '57|COMPLETED|n1|1|None'")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert SlurmQueue(QueueContext({}, tmp_path)).find([job]) == [None]
    assert jobs_main([str(tmp_path)]) == 0
    assert "failed" in capsys.readouterr().out
    follow([tmp_path])
    assert not (tmp_path / "ran").exists()
