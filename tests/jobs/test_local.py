"""Jobs of this machine outlive the command that submitted them, and are found, looked at and cancelled by others."""

import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.jobs import local as local_queue
from nlu.jobs.__main__ import main as jobs_main
from nlu.jobs.listing import follow
from nlu.jobs.local import MACHINE, LocalQueue
from nlu.jobs.queue import Job, JobState, Look, QueueContext, Ticket, open_queue
from nlu.jobs.slurm import SlurmQueue
from nlu.jobs.submissions import Submissions, new_tokens
from nlu.jobs.submitit_jobs import beat_file, failed, read_outcome, to_plain
from nlu.storage.files import write_json
from nlu.sweeps.faults import last_line, machine_fault
from tests.jobs.jobs import visible_gpus

SETTINGS = {"timeout_min": 5, "nodes": 1}


def queue(folder: Path, work=None, **settings) -> LocalQueue:
    return LocalQueue(QueueContext({**SETTINGS, **settings}, folder, work=work))


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
    until_ended(watched, [ticket.id])
    assert read_outcome(next(tmp_path.glob(".submitit/*/*/*_result.pkl"))) == seen


def test_ids_and_queues_that_there_are_not_are_refused(tmp_path):
    with pytest.raises(UserError, match="57 is not a job of this machine"):
        queue(tmp_path).look(["57"])
    with pytest.raises(UserError, match="slrum is not a queue of nlu or of an installed launcher; nearest: slurm"):
        open_queue("slrum", QueueContext({}, tmp_path))


ELSEWHERE = """
import sys
from pathlib import Path
from tests.jobs.jobs import inherited, number_of, sleep
from tests.jobs.test_local import jobs, queue, until_ended
work = {"number_of": number_of, "sleep": sleep}[sys.argv[2]]
there = queue(Path(sys.argv[1]), work)
ids = [ticket.id for ticket in there.submit(jobs(1))]
if work is number_of:
    until_ended(there, ids)
print(*ids, flush=True)
sys.stdin.read()
"""
UNSHARED = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]


@contextmanager
def job_elsewhere(folder: Path, work: str):
    """The id of a job that was submitted on another machine: with a separate host name, processes and /proc."""
    probe = [*UNSHARED, "hostname far"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot have a machine of another name")
    process = subprocess.Popen(
        [*UNSHARED, 'hostname far; exec "$@"', "sh", sys.executable, "-c", ELSEWHERE, str(folder), work],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def test_a_job_of_another_machine_that_shares_the_folder_is_never_judged_here(tmp_path, importable):
    with job_elsewhere(tmp_path, "sleep") as id:
        assert id.startswith("far/")
        until_s = time.monotonic() + 60
        while not list((tmp_path / ".submitit").rglob("*_beat")) and time.monotonic() < until_s:
            time.sleep(0.05)
        look = queue(tmp_path).look([id])[id]
        assert (look.state, look.node, look.is_certain) == (JobState.RUNNING, "far", False)
        assert look.reason == "it is a process of far, and can only be cancelled there"
        with pytest.raises(UserError, match="job 0 is a process of far, and can only be cancelled there; run .* there"):
            queue(tmp_path).cancel([id])
        assert [ticket.id for ticket in queue(tmp_path).find([Job(0, "/0", (), id.split("/")[1])])] == [id]


def of_far(folder: Path, number: int) -> str:
    """The id of a job that another machine has, or had."""
    token = new_tokens(1)[0]
    (folder / ".submitit" / token / "12").mkdir(parents=True)
    write_json(folder / ".submitit" / token / MACHINE, {"host": "far", "machine": "other pid:[1]", "number": number})
    return f"far/{token}/12"


def beat_of(folder: Path, id: str) -> Path:
    return beat_file(folder / ".submitit" / id.split("/")[1] / "12", "12")


def test_a_job_of_a_machine_that_is_gone_is_lost_once_its_beat_has_stood_still(tmp_path, monkeypatch):
    monkeypatch.setattr(local_queue, "SILENCE_S", 0.8)
    id = of_far(tmp_path, 3)
    look = queue(tmp_path).look([id])[id]
    assert look.state is JobState.RUNNING and look.reason.endswith(
        f"where far is gone, run python -m nlu.jobs {tmp_path} --forget 3"
    )
    follower = queue(tmp_path)
    for number in range(20):
        beat_of(tmp_path, id).write_text(f"far 0 7 {number}\n")
        # Commands that poll once each, and one that keeps polling.
        for watching in (queue(tmp_path), follower):
            assert watching.look([id])[id].state is JobState.RUNNING
        time.sleep(0.05)
    time.sleep(1.2)
    for watching in (queue(tmp_path), follower):
        look = watching.look([id])[id]
        assert look.state is JobState.LOST and look.reason.startswith("it has sent no heartbeat on far for ")
    (tmp_path / ".submitit" / id.split("/")[1] / "12" / "cancelled").touch()
    assert queue(tmp_path).look([id])[id].state is JobState.CANCELLED


class Runs:
    """A pickle of it runs a command when it is loaded."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def crafted_folder(folder: Path, name: str, job: Job, file: Path) -> None:
    """Make a folder of a submission, as a stranger may hand it over: its job's result runs a command when loaded."""
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(("success", Runs(f"touch {folder}/ran"))))
    (file.parent.parent / MACHINE if name == "local" else file).touch()
    record = Submissions(folder)
    record.begin([job], name, SETTINGS, "python -m nlu.train")
    id = f"{socket.gethostname()}/{job.token}/57" if name == "local" else "57"
    record.submitted([Ticket(job, id, None)])


@pytest.mark.parametrize("name", ["local", "slurm"])
def test_nothing_that_lies_in_a_folder_runs_when_its_jobs_are_listed_and_followed(tmp_path, name, monkeypatch, capsys):
    (job,) = jobs(1)
    base = tmp_path / ".submitit" / job.token
    file = base / "57/57_0_result.pkl" if name == "local" else base / "57_0_result.pkl"
    crafted_folder(tmp_path, name, job, file)
    if name == "slurm":
        (base / "57_submitted.pkl").write_bytes(pickle.dumps(Runs(f"touch {tmp_path}/ran")))
        monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
        assert SlurmQueue(QueueContext({}, tmp_path)).find([job]) == [None]
    assert jobs_main([str(tmp_path)]) == 0
    assert "failed" in capsys.readouterr().out
    follow([tmp_path])
    assert not (tmp_path / "ran").exists()


def test_the_error_of_a_job_keeps_its_type_and_causes_and_hides_secrets(tmp_path):
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise ValueError("cannot write with https://user:geheim@host/a") from error
    except ValueError as error:
        returned = failed(error)
        returned._remote_traceback = [(__file__, "writes", 7)]
    file = tmp_path / "57_0_result.pkl"
    file.write_bytes(pickle.dumps(("success", to_plain(returned))))
    assert b"geheim" not in file.read_bytes()
    outcome = read_outcome(file)
    found = outcome._return_value
    assert last_line(found) == "ValueError: cannot write with https://***@host/a"
    assert "No space left" in str(machine_fault(found))
    with pytest.raises(RuntimeError) as raised:
        _ = outcome.return_value
    assert 'test_local.py", line 7, in writes' in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("value", "read"), [(np.float32(0.5), 0.5), ([1, {"a": None}], [1, {"a": None}]), (75, 75)])
def test_the_result_of_a_job_is_read_as_numbers_texts_and_lists(tmp_path, value, read):
    file = tmp_path / "57_0_result.pkl"
    file.write_bytes(pickle.dumps(("success", to_plain(value))))
    assert read_outcome(file) == read
