"""The queue of this machine: submitit starts each job as a process, which outlives the command that submitted it.

The id of a job is HOST/TOKEN/PROCESS. The folder of a token belongs to one job, and its process names that folder, so
that a later process with the same number is not taken for the job. Another machine may see the folder, but not the
process: only its own machine knows whether the job lives, and can cancel it.
"""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from submitit import LocalExecutor, LocalJob

from nlu.config.errors import UserError
from nlu.config.sentences import numbered, path_text
from nlu.jobs.queue import Job, JobState, Look, Queue, QueueContext, Ticket
from nlu.jobs.submitit_jobs import (
    WORK,
    PlainWork,
    base_folder,
    environment_of_new_job,
    files_of,
    read_outcome,
    state_of,
    tail,
)
from nlu.storage.locks import identity_of

CONTROLLER = "submitit.local._local"
CANCEL_AGAIN_S, CANCEL_WAIT_S = 0.5, 30.0
"""A job that is just starting ignores SIGTERM, so it is repeated; a job that does not end in time is killed."""
TIMEOUT_MIN = 60 * 24 * 60
"""limit of a job if hydra.launcher.timeout_min is null: submitit wants one, and nobody asked for it here"""
SIGNAL_DELAY_S = 30
"""seconds before its limit at which a job is asked to save its state; submitit's default"""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class DetachedExecutor(LocalExecutor):
    """Starts jobs that outlive this process, with the GPUs that it sees.

    A job gets its own session, which Ctrl-C and the end of a terminal do not reach, and none of the streams of this
    process: a pipe stays open until the last process that has it ends. The variables are those of submitit's own
    `start_controller`, read in 1.5.4.
    """

    def _submit_command(self, command: str) -> LocalJob[Any]:
        environment, count = environment_of_new_job(os.environ), self.parameters["gpus"]
        if count is not None:
            named = environment[VISIBLE].split(",") if VISIBLE in environment else list(map(str, range(count)))
            environment[VISIBLE] = ",".join(named[:count])
        process = subprocess.Popen(
            [sys.executable, "-m", CONTROLLER, str(self.folder)],
            env={
                **environment,
                "SUBMITIT_EXECUTOR": "local",
                "SUBMITIT_LOCAL_COMMAND": command,
                "SUBMITIT_LOCAL_NTASKS": "1",
                "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * self.parameters["timeout_min"]),
                "SUBMITIT_LOCAL_SIGNAL_DELAY_S": str(SIGNAL_DELAY_S),
                "SUBMITIT_LOCAL_NODEID": "0",
                "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
                "SUBMITIT_LOCAL_WITH_SHELL": "",
                "SUBMITIT_STDERR_TO_STDOUT": "",
            },
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # /proc shows no command line in the first moment of a process, which would pass for ended.
        while process.poll() is None and not _is_of(process.pid, self.folder.name):
            time.sleep(0.001)
        return LocalJob(self.folder, str(process.pid), process=process)


class LocalQueue(Queue):
    """Processes of this machine."""

    name = "local"
    poll_s = 0.1

    def __init__(self, context: QueueContext):
        self._settings, self._work = context.settings, context.work
        self._base = base_folder(self._settings, context.folder)
        self._shown = shlex.quote(path_text(context.folder))

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Start a process for each job; see `nlu.jobs.queue.Queue`."""
        assert self._work is not None, "this queue was opened to look after jobs"
        tickets = []
        for job in jobs:
            executor = DetachedExecutor(self._base / job.token)
            limit_min = self._settings.get("timeout_min") or TIMEOUT_MIN
            executor.update_parameters(timeout_min=limit_min, gpus=self._settings.get("gpus"))
            process = executor.submit(PlainWork(self._work), job).job_id
            tickets.append(self._ticket(job, socket.gethostname(), process))
        return tickets

    def _ticket(self, job: Job, host: str, process: str) -> Ticket:
        return Ticket(job, f"{host}/{job.token}/{process}", str(self._base / job.token / f"{process}_0_log.err"))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job that was started; see `nlu.jobs.queue.Queue`.

        A process without its work does not count, and is ended. Raises UserError for a job that another machine was
        about to start.
        """
        found: list[Ticket | None] = []
        for job in jobs:
            host = job.machine.partition(" ")[0] or socket.gethostname()
            began = [path.name.removesuffix(WORK) for path in (self._base / job.token).glob(f"*{WORK}")]
            if not began and is_elsewhere(job.machine):
                raise UserError(f"{host} was about to start job {job.number}, and {self._only(host, [job])}")
            for process in () if began else processes(job.token):
                # The command was killed before it had handed over the work, for which the process waits in vain.
                _signal(process, signal.SIGKILL)
            found.append(self._ticket(job, host, began[0]) if began else None)
        return found

    def look(self, tickets: Sequence[Ticket]) -> dict[str, Look]:
        return {ticket.id: self._look(ticket) for ticket in tickets}

    def _look(self, ticket: Ticket) -> Look:
        (host, process), is_other = _parts(ticket), _is_of_another(ticket)
        if not is_other and _is_of(process, ticket.job.token):
            return Look(JobState.RUNNING, host)
        # The result of a job is written before its process ends.
        if (outcome := self.outcome(ticket)) is not None:
            return Look(state_of(outcome))
        if is_other:
            why = f"it is a process of {host}, and {self._only(host, [ticket.job])}"
            return Look(JobState.RUNNING, host, why, is_certain=False)
        return Look(JobState.LOST, reason="its process ended without a result")

    def _only(self, host: str, jobs: Sequence[Job]) -> str:
        """Return what can be done about jobs of another machine."""
        numbers = " ".join(str(job.number) for job in jobs)
        return (
            f"only there it can be seen whether it lives, and be cancelled; where {host} is gone, run "
            f"python -m nlu.jobs {self._shown} --forget {numbers}"
        )

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Have the jobs save their state and end, and kill those that do not end in time.

        Afterwards it raises UserError for jobs that are processes of other machines.
        """
        others: dict[str, list[Job]] = {}
        for ticket in filter(_is_of_another, tickets):
            others.setdefault(_parts(ticket)[0], []).append(ticket.job)
        running = [ticket for ticket in tickets if not _is_of_another(ticket)]
        deadline_s = time.monotonic() + CANCEL_WAIT_S
        # Only what runs is sent a signal: the number of a process that has ended may belong to another one now.
        while running := [one for one in running if _is_of(_parts(one)[1], one.job.token)]:
            number = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            for ticket in running:
                _signal(_parts(ticket)[1], number)
            time.sleep(CANCEL_AGAIN_S)
        if others:
            raise UserError(*(
                f"{numbered('job', [job.number for job in jobs])} of {host}: {self._only(host, jobs)}"
                for host, jobs in others.items()
            ))  # fmt: skip

    def log_tail(self, ticket: Ticket, lines: int = 1) -> list[str]:
        return tail([files_of(ticket).stderr, files_of(ticket).stdout], lines)

    def outcome(self, ticket: Ticket, *, fetches: bool = True) -> object:
        return read_outcome(files_of(ticket).result_pickle)


@cache
def this_machine() -> str:
    """Return HOST BOOT NAMESPACE, which no other machine has, no container, and not this machine before a restart."""
    return f"{socket.gethostname()} {identity_of(os.getpid()).get('machine', '')}".strip()


def is_elsewhere(machine: str) -> bool:
    """Return whether the processes of a machine are not to be seen here: also those of another container.

    After a restart of this machine its earlier processes are gone, and belong to no other machine.
    """
    own_host, *own_boot = this_machine().split()
    host, *boot = machine.split() or [own_host]
    if boot and own_boot and boot[0] == own_boot[0]:
        return boot != own_boot
    return host != own_host


def _parts(ticket: Ticket) -> tuple[str, int]:
    """Return the host of a job and its process."""
    match ticket.id.split("/"):
        case [host, _, process] if process.isdigit():
            return host, int(process)
    raise UserError(f"{ticket.id} is not a job of this machine; its ids are HOST/TOKEN/PROCESS")


def _is_of_another(ticket: Ticket) -> bool:
    return is_elsewhere(ticket.job.machine or _parts(ticket)[0])


def processes(token: str) -> Iterator[int]:
    """Yield the processes of this machine that are jobs with this token."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _is_of(int(process.name), token):
            yield int(process.name)


def _is_of(process: int, token: str) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    # The whole name: that of another folder may begin in the same way.
    return CONTROLLER.encode() in command and re.search(rf"/{re.escape(token)}[/\0]".encode(), command) is not None


def _signal(process: int, number: int) -> None:
    """Send a signal to the process of a job, which passes SIGTERM on to its children. SIGKILL goes to all of them."""
    # Any of them may have ended.
    with contextlib.suppress(OSError):
        if number == signal.SIGKILL:
            for listing in Path(f"/proc/{process}/task").glob("*/children"):
                for child in listing.read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(child), number)
        os.kill(process, number)
