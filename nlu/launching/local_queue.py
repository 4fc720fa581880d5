"""A queue of this machine: every job is a process of its own that submitit starts, and outlives whoever submitted it.

A job's id is HOST/TOKEN/PROCESS. The folder of a token belongs to one submission of one job, so that a process number
that comes again is never taken for it. Other machines may see that folder too, but not the process: what it returned
they read, whether it lives its own machine alone can tell.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobStatus

from nlu.config.errors import UserError
from nlu.launching.queue import Job, JobRefused, JobState, Look, Ticket
from nlu.launching.queues import Place
from nlu.launching.submitit_jobs import log_files, read_outcome, result_file, start_jobs_apart, tail
from nlu.storage.cache import read_json
from nlu.storage.files import write_json
from nlu.storage.processes import identity_of

CANCELLED = "cancelled"
"""file in the folder of a job that was cancelled"""
CONTROLLER = b"submitit.local._local"
CANCEL_AGAIN_S, CANCEL_WAIT_S = 0.5, 30.0
"""A job that is just starting does not listen to SIGTERM yet; one that does not leave in time is killed."""
TIMEOUT_MIN = 60
"""longest time of a job where nobody set it"""
OURS = ("submitit_folder", "wait")
"""keys of hydra.launcher that submitit does not know"""
MACHINE = "machine.json"
"""file in the folder of a token: which machine its process is of, and which start of it"""


class LocalQueue:
    """Processes of this machine."""

    name = "local"
    poll_s = 0.1

    def __init__(self, place: Place):
        self._settings, self._work = dict(place.settings), place.work
        folder = self._settings.get("submitit_folder") or f"{place.folder}/.submitit/%j"
        self._folder = Path(os.path.abspath(str(folder).replace("%j", ""))).expanduser()
        self._started: dict[str, Any] = {}

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Start a process for each job; see `nlu.launching.queue.Queue`."""
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
        start_jobs_apart()
        write_json(self._folder / job.token / MACHINE, _here())
        started = executor.submit(self._work, job)
        self._started[str(started.job_id)] = started
        return self._ticket(job, socket.gethostname(), str(started.job_id))

    def _ticket(self, job: Job, host: str, process: str) -> Ticket:
        error_file, output_file = log_files(self._folder / job.token / process, process)
        log = output_file if self._settings.get("stderr_to_stdout") else error_file
        return Ticket(job, f"{host}/{job.token}/{process}", str(log))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job that was started; see `nlu.launching.queue.Finding`.

        Raises UserError for one that another machine was about to start, or has.
        """
        found: list[Ticket | None] = []
        for job in jobs:
            folder = self._folder / job.token
            host = (read_json(folder / MACHINE) or _here())["host"]
            # Before submitit has moved the job into its folder, nothing but its process is known.
            began = [path.name for path in folder.glob("*") if path.name.isdigit()]
            began += [str(process) for process in _processes(str(folder))]
            if not began and _is_elsewhere(host, folder):
                raise UserError(
                    f"{host} was about to start job {job.number} when that was cut off, and only there can be told "
                    "whether it did; run the same command there"
                )
            found.append(self._ticket(job, host, began[0]) if began else None)
        return found

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.launching.queue.Queue`."""
        return {id: self._look(id) for id in ids}

    def _look(self, id: str) -> Look:
        host, folder, process = self._place(id)
        is_elsewhere = _is_elsewhere(host, folder.parent)
        is_alive = not is_elsewhere and self._is_alive(folder, process)
        # What it returned is there before its process is gone.
        if (outcome := read_outcome(result_file(folder, process))) is not None and not is_alive:
            if (folder / CANCELLED).exists():
                return Look(JobState.CANCELLED)
            is_done = getattr(outcome, "status", JobStatus.COMPLETED) == JobStatus.COMPLETED
            return Look(JobState.DONE if is_done else JobState.FAILED)
        if is_alive:
            return Look(JobState.RUNNING, socket.gethostname())
        if is_elsewhere:
            why = f"it is a process of {host}, and only there can be told whether it lives, and be cancelled"
            return Look(JobState.RUNNING, host, why, is_certain=False)
        if (folder / CANCELLED).exists():
            return Look(JobState.CANCELLED)
        return Look(JobState.LOST, reason="its process ended without a word")

    def cancel(self, ids: Sequence[str]) -> None:
        """Have the jobs save their state and end; those that do not in time are killed.

        Raises UserError, before any is told to, where one of them is a process of another machine.
        """
        places = [self._place(id) for id in ids]
        if hosts := dict.fromkeys(host for host, folder, _ in places if _is_elsewhere(host, folder.parent)):
            raise UserError(
                f"some of these jobs are processes of {', '.join(hosts)}, and can be cancelled there only; nothing was "
                "cancelled; run the same command there"
            )
        running = [(folder, process) for _, folder, process in places if self._is_alive(folder, process)]
        for folder, _ in running:
            (folder / CANCELLED).touch()
        deadline_s = time.monotonic() + CANCEL_WAIT_S
        while running:
            number = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            for _, process in running:
                _signal_job(int(process), number)
            time.sleep(CANCEL_AGAIN_S)
            running = [job for job in running if self._is_alive(*job)]

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """See `nlu.launching.queue.Queue`."""
        return tail(log_files(*self._place(id)[1:]), lines)

    def outcome(self, id: str) -> Any:
        """See `nlu.launching.queue.Queue`."""
        return read_outcome(result_file(*self._place(id)[1:]))

    status = outcome

    def _place(self, id: str) -> tuple[str, Path, str]:
        """Return the host of a job, its folder and its process."""
        host, token, process = ["", "", *id.split("/")][-3:]
        if not token or not process.isdigit():
            raise UserError(f"{id} is no job of this machine; its ids are HOST/TOKEN/PROCESS")
        # An earlier version left the host out.
        return host or socket.gethostname(), self._folder / token / process, process

    def _is_alive(self, folder: Path, process: str) -> bool:
        started = self._started.get(process)
        if started is not None:
            # For a moment a process that has just begun has no command line yet.
            return not started.done()
        return _is_controller(Path("/proc") / process, str(folder.parent))


def _here() -> dict[str, str]:
    """Return what names this machine, and this start of it."""
    return {"host": socket.gethostname(), "machine": identity_of(os.getpid()).get("machine", "")}


def _is_elsewhere(host: str, folder: Path) -> bool:
    """Whether the processes of a token's folder are those of another machine, or of another container of this one.

    A machine of the same name that was started again since has none of them any more.
    """
    here, theirs = _here(), (read_json(folder / MACHINE) or {}).get("machine")
    if not theirs or not here["machine"]:
        return host != here["host"]
    if theirs == here["machine"]:
        return False
    is_of_this_start = theirs.partition(" ")[0] == here["machine"].partition(" ")[0]
    return host != here["host"] or is_of_this_start


def _is_controller(process: Path, folder: str) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return False
    # The name of one folder may begin that of another.
    return CONTROLLER in command and f"{folder}/".encode() in command


def _processes(folder: str) -> Iterator[int]:
    """Yield the processes of jobs whose files lie in this folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _is_controller(process, folder):
            yield int(process.name)


def _signal_job(process: int, number: int) -> None:
    """Send a signal to a job's process, which hands SIGTERM on to those that it started; SIGKILL goes to each."""
    # One of them may end meanwhile.
    with contextlib.suppress(OSError):
        if number == signal.SIGKILL:
            for listing in Path(f"/proc/{process}/task").glob("*/children"):
                for child in listing.read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(child), number)
        os.kill(process, number)
