"""The queue of this machine: submitit starts each job as a process, which outlives the command that submitted it.

The id of a job is HOST/TOKEN/PROCESS. The folder of a token belongs to one submission of one job, so that a later
process with the same number is not taken for the job. Another machine may see that folder, but not the process: there
the heartbeat beside the log shows whether the job lives. Only its own machine can cancel it.
"""

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.utils import JobStatus

from nlu.config.errors import UserError
from nlu.config.words import path_text
from nlu.jobs.queue import Job, JobRefused, JobState, Look, QueueContext, Ticket
from nlu.jobs.submitit_jobs import (
    SILENCE_S,
    LastBeats,
    WithHeartbeat,
    beat_file,
    detach_jobs,
    log_files,
    read_outcome,
    result_file,
    tail,
)
from nlu.storage.files import read_json, write_json
from nlu.storage.heartbeat import identity_of

CANCELLED = "cancelled"
"""the file in the folder of a job that was cancelled"""
CONTROLLER = b"submitit.local._local"
CANCEL_AGAIN_S, CANCEL_WAIT_S = 0.5, 30.0
"""A job that is just starting ignores SIGTERM, so it is repeated; a job that does not end in time is killed."""
TIMEOUT_MIN = 60 * 24 * 60
"""limit of a job if hydra.launcher.timeout_min is null: submitit wants one, and nobody asked for it here"""
OURS = ("submitit_folder", "wait", "gpus")
"""keys of hydra.launcher that submitit does not get"""
VISIBLE = "CUDA_VISIBLE_DEVICES"
MACHINE = "machine.json"
"""the file in the folder of a token: the machine of its process, its boot, and the number of the job"""


class WithGpus:
    """Calls a job's work with the GPUs that this process sees, or the first of them: submitit names others, or none."""

    def __init__(self, work: Callable[[Job], object], count: int | None):
        """`count` of them; None = all."""
        self._work, self._names = work, os.environ.get(VISIBLE)
        if count is not None:
            named = list(map(str, range(count))) if self._names is None else self._names.split(",")
            self._names = ",".join(named[:count])

    def __call__(self, job: Job) -> object:
        os.environ.pop(VISIBLE, None)
        if self._names is not None:
            os.environ[VISIBLE] = self._names
        return self._work(job)


class LocalQueue:
    """A `nlu.jobs.queue.Queue` of processes of this machine."""

    name = "local"
    poll_s = 0.1

    def __init__(self, context: QueueContext):
        self._settings, self._work = dict(context.settings), context.work
        folder = self._settings.get("submitit_folder") or f"{context.folder}/.submitit/%j"
        self._folder = Path(os.path.abspath(str(folder).replace("%j", ""))).expanduser()
        self._started: dict[str, Any] = {}
        self._shown = shlex.quote(path_text(context.folder))
        self._machines: dict[Path, Mapping[str, Any]] = {}
        """what the file in the folder of a token says of its machine"""
        self._beats = LastBeats()

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Start a process for each job; see `nlu.jobs.queue.Queue`."""
        return [self._submit(job) for job in jobs]

    def _submit(self, job: Job) -> Ticket:
        import submitit

        assert self._work is not None, "this queue was opened to look after jobs"
        try:
            executor = submitit.AutoExecutor(folder=self._folder / job.token / "%j", cluster="local")
            known = {key: value for key, value in self._settings.items() if key not in OURS and value is not None}
            executor.update_parameters(**{"timeout_min": TIMEOUT_MIN, **known})
        except (TypeError, ValueError, NameError) as error:
            raise JobRefused(f"submitit cannot start jobs here: {error}; correct what hydra.launcher sets") from error
        detach_jobs()
        # Before the start: after a kill in between, the file tells which machine may have the process.
        write_json(self._folder / job.token / MACHINE, {**_here(), "number": job.number})
        started = executor.submit(WithHeartbeat(WithGpus(self._work, self._settings.get("gpus"))), job)
        self._started[str(started.job_id)] = started
        return self._ticket(job, socket.gethostname(), str(started.job_id))

    def _ticket(self, job: Job, host: str, process: str) -> Ticket:
        error_file, output_file = log_files(self._folder / job.token / process, process)
        log = output_file if self._settings.get("stderr_to_stdout") else error_file
        return Ticket(job, f"{host}/{job.token}/{process}", str(log))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job that was started; see `nlu.jobs.queue.Finding`.

        Raises UserError for a job that another machine has, or was about to start.
        """
        found: list[Ticket | None] = []
        for job in jobs:
            folder = self._folder / job.token
            host = self._machine(folder).get("host", _here()["host"])
            # Before submitit has moved the job into its folder, only its process is there.
            began = [path.name for path in folder.glob("*") if path.name.isdigit()]
            began += [str(process) for process in _processes(str(folder))]
            if not began and self._is_elsewhere(host, folder):
                raise UserError(
                    f"{host} was about to start job {job.number} when that was cut off, and only "
                    f"{host} knows whether it did; run the same command there; {self._way_out(host, str(job.number))}"
                )
            found.append(self._ticket(job, host, began[0]) if began else None)
        return found

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        return {id: self._look(id) for id in ids}

    def _look(self, id: str) -> Look:
        host, folder, process = self._parts(id)
        is_elsewhere, why = self._is_elsewhere(host, folder.parent), "its process ended without a result"
        is_alive = not is_elsewhere and self._is_alive(folder, process)
        # The result of a job is written before its process ends.
        if (outcome := read_outcome(result_file(folder, process))) is not None and not is_alive:
            if (folder / CANCELLED).exists():
                return Look(JobState.CANCELLED)
            is_done = getattr(outcome, "status", JobStatus.COMPLETED) == JobStatus.COMPLETED
            return Look(JobState.DONE if is_done else JobState.FAILED)
        if is_alive:
            return Look(JobState.RUNNING, socket.gethostname())
        if is_elsewhere:
            beat = self._beats.last(beat_file(folder, process))
            if beat is None or beat[1] <= SILENCE_S:
                only = "can only be cancelled there"
                if beat is None:
                    out = self._way_out(host, self._number(folder.parent))
                    only = f"only {host} knows whether it is alive, and can cancel it; {out}"
                return Look(JobState.RUNNING, host, f"it is a process of {host}, and {only}", is_certain=False)
            why = f"it has sent no heartbeat on {host} for {beat[1]:.0f} s"
        if (folder / CANCELLED).exists():
            return Look(JobState.CANCELLED)
        return Look(JobState.LOST, reason=why)

    def _way_out(self, host: str, numbers: str) -> str:
        return f"where {host} is gone, run python -m nlu.jobs {self._shown} --forget {numbers}"

    def _number(self, folder: Path) -> str:
        return str(self._machine(folder).get("number", "NUMBER"))

    def _machine(self, folder: Path) -> Mapping[str, Any]:
        """Return what is known of the machine of the processes in the folder of a token."""
        if folder not in self._machines and (found := read_json(folder / MACHINE)) is not None:
            self._machines[folder] = found
        return self._machines.get(folder, {})

    def _is_elsewhere(self, host: str, folder: Path) -> bool:
        """Whether the processes of a token's folder belong to another machine, or to another container on this one.

        After a restart of its machine a process is gone, and belongs to no other machine.
        """
        here, theirs = _here(), self._machine(folder).get("machine")
        if not theirs or not here["machine"]:
            return host != here["host"]
        if theirs == here["machine"]:
            return False
        is_of_this_start = theirs.partition(" ")[0] == here["machine"].partition(" ")[0]
        return host != here["host"] or is_of_this_start

    def cancel(self, ids: Sequence[str]) -> None:
        """Have the jobs save their state and end, and kill those that do not end in time.

        Afterwards it raises UserError for jobs that are processes of other machines.
        """
        own, others = [], dict[str, list[str]]()
        for host, folder, process in map(self._parts, ids):
            if self._is_elsewhere(host, folder.parent):
                others.setdefault(host, []).append(self._number(folder.parent))
            else:
                own.append((folder, process))
        self._cancel_here(own)
        if others:
            raise UserError(*(self._refusal(host, numbers) for host, numbers in others.items()))

    def _refusal(self, host: str, numbers: Sequence[str]) -> str:
        are = f"job {numbers[0]} is a process" if len(numbers) == 1 else f"jobs {', '.join(numbers)} are processes"
        given = " ".join(numbers)
        return (
            f"{are} of {host}, and can only be cancelled there; run python -m nlu.jobs {self._shown} --cancel {given} "
            f"there; {self._way_out(host, given)}"
        )

    def _cancel_here(self, jobs: Sequence[tuple[Path, str]]) -> None:
        # Checked first: the number of a process that has ended may belong to another one now.
        running = [job for job in jobs if self._is_alive(*job)]
        for folder, _ in running:
            # Before the signal, so that a job that ends at once already counts as cancelled.
            (folder / CANCELLED).touch()
        deadline_s = time.monotonic() + CANCEL_WAIT_S
        while running:
            number = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            for _, process in running:
                signal_job(int(process), number)
            time.sleep(CANCEL_AGAIN_S)
            running = [job for job in running if self._is_alive(*job)]

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        return tail(log_files(*self._parts(id)[1:]), lines)

    def outcome(self, id: str) -> object:
        return read_outcome(result_file(*self._parts(id)[1:]))

    status = outcome

    def _parts(self, id: str) -> tuple[str, Path, str]:
        """Return the host of a job, its folder and its process."""
        match id.split("/"):
            case [host, token, process] if process.isdigit():
                return host, self._folder / token / process, process
        raise UserError(f"{id} is not a job of this machine; its ids are HOST/TOKEN/PROCESS")

    def _is_alive(self, folder: Path, process: str) -> bool:
        started = self._started.get(process)
        if started is not None:
            # /proc shows no command line in the first moment of a process.
            return not started.done()
        return _is_controller(Path("/proc") / process, str(folder.parent))


@cache
def _here() -> Mapping[str, str]:
    """Return the name of this machine, and its identity, which includes its boot."""
    return {"host": socket.gethostname(), "machine": identity_of(os.getpid()).get("machine", "")}


def _is_controller(process: Path, folder: str) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return False
    # With the slash, since the name of another folder may begin in the same way.
    return CONTROLLER in command and f"{folder}/".encode() in command


def _processes(folder: str) -> Iterator[int]:
    """Yield the processes of jobs whose files lie in this folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _is_controller(process, folder):
            yield int(process.name)


def signal_job(process: int, number: int) -> None:
    """Send a signal to the process of a job, which passes SIGTERM on to its children. SIGKILL goes to all of them."""
    # Any of them may have ended.
    with contextlib.suppress(OSError):
        if number == signal.SIGKILL:
            for listing in Path(f"/proc/{process}/task").glob("*/children"):
                for child in listing.read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(child), number)
        os.kill(process, number)
