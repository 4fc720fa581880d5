"""A queue of this machine: every job is a process of its own that submitit starts, and outlives whoever submitted it.

A job's id is TOKEN/PROCESS. The folder of a token belongs to one submission of one job, so that a process number that
comes again is never taken for it.
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

CANCELLED = "cancelled"
"""file in the folder of a job that was cancelled"""
CONTROLLER = b"submitit.local._local"
CANCEL_AGAIN_S, CANCEL_WAIT_S = 0.5, 30.0
"""A job that is just starting does not listen to SIGTERM yet; one that does not leave in time is killed."""
TIMEOUT_MIN = 60
"""longest time of a job where nobody set it"""
OURS = ("submitit_folder", "wait")
"""keys of hydra.launcher that submitit does not know"""


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
        started = executor.submit(self._work, job)
        self._started[str(started.job_id)] = started
        return self._ticket(job, str(started.job_id))

    def _ticket(self, job: Job, process: str) -> Ticket:
        error_file, output_file = log_files(self._folder / job.token / process, process)
        log = output_file if self._settings.get("stderr_to_stdout") else error_file
        return Ticket(job, f"{job.token}/{process}", str(log))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job that was started; see `nlu.launching.queue.Finding`."""
        found: list[Ticket | None] = []
        for job in jobs:
            # Before submitit has moved the job into its folder, nothing but its process is known.
            began = [path.name for path in (self._folder / job.token).glob("*") if path.name.isdigit()]
            began += [str(process) for process in _processes(str(self._folder / job.token))]
            found.append(self._ticket(job, began[0]) if began else None)
        return found

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.launching.queue.Queue`."""
        return {id: self._look(id) for id in ids}

    def _look(self, id: str) -> Look:
        folder, process = self._place(id)
        is_alive = self._is_alive(folder, process)
        # What it returned is there before its process is gone.
        if (outcome := read_outcome(result_file(folder, process))) is not None and not is_alive:
            if (folder / CANCELLED).exists():
                return Look(JobState.CANCELLED)
            is_done = getattr(outcome, "status", JobStatus.COMPLETED) == JobStatus.COMPLETED
            return Look(JobState.DONE if is_done else JobState.FAILED)
        if is_alive:
            return Look(JobState.RUNNING, socket.gethostname())
        if (folder / CANCELLED).exists():
            return Look(JobState.CANCELLED)
        return Look(JobState.LOST, reason="its process ended without a word")

    def cancel(self, ids: Sequence[str]) -> None:
        """Have the jobs save their state and end; those that do not in time are killed."""
        running = [id for id in ids if self._is_alive(*self._place(id))]
        for id in running:
            (self._place(id)[0] / CANCELLED).touch()
        deadline_s = time.monotonic() + CANCEL_WAIT_S
        while running:
            number = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            for id in running:
                _signal_job(int(self._place(id)[1]), number)
            time.sleep(CANCEL_AGAIN_S)
            running = [id for id in running if self._is_alive(*self._place(id))]

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """See `nlu.launching.queue.Queue`."""
        return tail(log_files(*self._place(id)), lines)

    def outcome(self, id: str) -> Any:
        """See `nlu.launching.queue.Queue`."""
        return read_outcome(result_file(*self._place(id)))

    status = outcome

    def _place(self, id: str) -> tuple[Path, str]:
        token, slash, process = id.rpartition("/")
        if not slash or not process.isdigit():
            raise UserError(f"{id} is no job of this machine; its ids are TOKEN/PROCESS")
        return self._folder / token / process, process

    def _is_alive(self, folder: Path, process: str) -> bool:
        started = self._started.get(process)
        if started is not None:
            # For a moment a process that has just begun has no command line yet.
            return not started.done()
        return _is_controller(Path("/proc") / process, str(folder.parent))


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
