"""What the jobs of these tests do, and how a test waits for Slurm."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from nlu.jobs.queue import Job, JobState, Look, QueueContext, Ticket
from nlu.jobs.slurm import SlurmQueue
from nlu.jobs.submitit_jobs import files_of
from tests.slurm.cluster import all_processes, environment_of

PATIENCE_S = 120.0


@contextmanager
def jobs_cancelled() -> Iterator[None]:
    """Leave no job of this cluster behind, even if a test changes the environment."""
    environment, scancel = dict(os.environ), shutil.which("scancel")
    try:
        yield
    finally:
        for options in (["--full", "--signal=KILL"], []):
            subprocess.run([str(scancel), *options, "--user=root"], env=environment, check=False)


def returned(value: Any) -> JobReturn:
    """What a job leaves that ended well."""
    found = JobReturn(overrides=[], status=JobStatus.COMPLETED)
    found.return_value = value
    return found


def sleep(job: Job) -> JobReturn:
    """Sleep for the seconds of the first override, and return the job's number."""
    time.sleep(float(job.overrides[0]))
    print(f"job {job.number} has slept", file=sys.stderr)
    return returned(job.number)


def wait(job: Job) -> JobReturn:
    """Work until the test has the job end, see `let_end`; return the job's number."""
    start, file = os.environ.get("SLURM_RESTART_COUNT", "0"), Path(f"{job.folder}.ends")
    file.with_suffix(".began").touch()
    while not (file.exists() and start in file.read_text().split()):
        time.sleep(0.05)
    print(f"job {job.number} has waited", file=sys.stderr)
    return returned(job.number)


def let_end(*tickets: Ticket, start: int = 0) -> None:
    """Have jobs end that `wait`, once they are started for the first time, or again for the `start`-th."""
    for ticket in tickets:
        Path(ticket.job.folder).parent.mkdir(parents=True, exist_ok=True)
        with open(f"{ticket.job.folder}.ends", "a") as file:
            file.write(f"{start}\n")


def jobs(folder: Path, count: int, seconds: float = 0.0) -> list[Job]:
    return [Job(number, str(folder / str(number)), (str(seconds),), f"token-{number}") for number in range(count)]


def queue(folder: Path, work: Callable[[Job], Any] = sleep, **settings: Any) -> SlurmQueue:
    """The queue of the running cluster, with a separate folder."""
    return SlurmQueue(QueueContext({"timeout_min": 60, **settings}, folder, work=work))


def until(state: JobState, queue: SlurmQueue, *tickets: Ticket, patience_s: float = PATIENCE_S) -> list[Look]:
    """Wait until all the jobs are in this state; fails where one ends in another."""
    deadline_s = time.monotonic() + patience_s
    while True:
        found = queue.look(tickets)
        looks = [found[ticket.id] for ticket in tickets]
        if all(look.state is state for look in looks):
            return looks
        wrong = [look for look in looks if look.state.is_final and look.state is not state]
        assert not wrong and time.monotonic() < deadline_s, f"wanted {state}: {looks}"
        time.sleep(0.2)


def has_begun(*tickets: Ticket) -> None:
    """Wait until jobs are at work that `wait`, beyond the start of their processes."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(Path(f"{ticket.job.folder}.began").exists() for ticket in tickets):
        assert time.monotonic() < deadline_s, ask("squeue", "--states=all")
        time.sleep(0.1)


def process_of(ticket: Ticket) -> int:
    """Return the number of the process of a job's first task, as soon as it works."""
    files, place = files_of(ticket), ticket.id.partition("_")[2]
    words = {b"SLURM_PROCID=0", *([f"SLURM_ARRAY_TASK_ID={place}".encode()] if place else [])}
    deadline_s = time.monotonic() + PATIENCE_S
    while not files.stdout.exists() or "Loading pickle" not in files.stdout.read_text():
        assert time.monotonic() < deadline_s, ask("squeue", "--states=all")
        time.sleep(0.1)
    started = {
        pid for pid in all_processes() if words <= set(environment_of(pid)) and is_task_in(pid, str(files.folder))
    }  # fmt: skip
    return min(started)


def is_task_in(pid: int, folder: str) -> bool:
    """Return whether a process is what submitit has srun start for a job of this folder."""
    with suppress(OSError):
        program, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return "python" in program and "submitit.core._submit" in arguments and folder in arguments
    return False


def kill_process(ticket: Ticket) -> None:
    """Kill the first task of a job, as the kernel does where memory is short, as soon as it works."""
    os.kill(process_of(ticket), signal.SIGKILL)


def ask(*command: str) -> str:
    """What one of Slurm's commands says."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def detail(ticket: Ticket, name: str) -> str:
    """What Slurm says of a job under this name, as scontrol shows it."""
    shown = dict(part.split("=", 1) for part in ask("scontrol", "show", "job", ticket.id).split() if "=" in part)
    return shown[name]
