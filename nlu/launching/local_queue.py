"""A queue of this machine: every job is a process of its own that submitit starts, and outlives whoever submitted it.

A job's id is HOST/TOKEN/PROCESS. The folder of a token belongs to one submission of one job, so that a process number
that comes again is never taken for it. Other machines may see that folder too, but not the process: what it returned
they read, and whether it lives the beat beside its log tells. Its own machine alone can cancel it.
"""

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.utils import JobStatus

from nlu.config.errors import UserError
from nlu.config.words import path_text
from nlu.launching.attended import SILENCE_S, Attended, Beats, beat_file
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
"""file in the folder of a token: which machine its process is of, which start of it, and the number of the job"""


class LocalQueue:
    """Processes of this machine."""

    name = "local"
    poll_s = 0.1

    def __init__(self, place: Place):
        self._settings, self._work = dict(place.settings), place.work
        folder = self._settings.get("submitit_folder") or f"{place.folder}/.submitit/%j"
        self._folder = Path(os.path.abspath(str(folder).replace("%j", ""))).expanduser()
        self._started: dict[str, Any] = {}
        self._shown = shlex.quote(path_text(place.folder))
        self._machines: dict[Path, Mapping[str, Any]] = {}
        """by the folder of a token: what its file says of its machine"""
        self._beats = Beats()

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
        write_json(self._folder / job.token / MACHINE, {**_here(), "number": job.number})
        started = executor.submit(Attended(self._work), job)
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
            host = self._machine(folder).get("host", _here()["host"])
            # Before submitit has moved the job into its folder, nothing but its process is known.
            began = [path.name for path in folder.glob("*") if path.name.isdigit()]
            began += [str(process) for process in _processes(str(folder))]
            if not began and self._is_elsewhere(host, folder):
                raise UserError(
                    f"{host} was about to start job {job.number} when that was cut off, and only there can be told "
                    f"whether it did; run the same command there; {self._way_out(host, str(job.number))}"
                )
            found.append(self._ticket(job, host, began[0]) if began else None)
        return found

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.launching.queue.Queue`."""
        return {id: self._look(id) for id in ids}

    def _look(self, id: str) -> Look:
        host, folder, process = self._place(id)
        is_elsewhere, why = self._is_elsewhere(host, folder.parent), "its process ended without a word"
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
            beat = self._beats.last(beat_file(folder, process))
            if beat is None or beat[1] <= SILENCE_S:
                only = "can be cancelled there only"
                if beat is None:
                    out = self._way_out(host, self._number(folder.parent))
                    only = f"only there can be told whether it lives, and be cancelled; {out}"
                return Look(JobState.RUNNING, host, f"it is a process of {host}, and {only}", is_certain=False)
            why = f"no sign of life of it on {host} for {beat[1]:.0f} s"
        if (folder / CANCELLED).exists():
            return Look(JobState.CANCELLED)
        return Look(JobState.LOST, reason=why)

    def _way_out(self, host: str, numbers: str) -> str:
        return f"where {host} is gone, run python -m nlu.jobs {self._shown} --forget {numbers}"

    def _number(self, folder: Path) -> str:
        """Return the number of a job; an earlier version did not write it down."""
        return str(self._machine(folder).get("number", "NUMBER"))

    def _machine(self, folder: Path) -> Mapping[str, Any]:
        """Return what is known of the machine that has the processes of a token's folder."""
        if folder not in self._machines and (found := read_json(folder / MACHINE)) is not None:
            self._machines[folder] = found
        return self._machines.get(folder, {})

    def _is_elsewhere(self, host: str, folder: Path) -> bool:
        """Whether the processes of a token's folder are those of another machine, or of another container of this one.

        A machine of the same name that was started again since has none of them any more.
        """
        here, theirs = _here(), self._machine(folder).get("machine")
        if not theirs or not here["machine"]:
            return host != here["host"]
        if theirs == here["machine"]:
            return False
        is_of_this_start = theirs.partition(" ")[0] == here["machine"].partition(" ")[0]
        return host != here["host"] or is_of_this_start

    def cancel(self, ids: Sequence[str]) -> None:
        """Have the jobs save their state and end; those that do not in time are killed.

        Raises UserError, when these have ended, for those that are processes of other machines.
        """
        own, others = [], dict[str, list[str]]()
        for host, folder, process in map(self._place, ids):
            if self._is_elsewhere(host, folder.parent):
                others.setdefault(host, []).append(self._number(folder.parent))
            else:
                own.append((folder, process))
        self._cancel_here(own)
        if others:
            raise UserError(*(self._refusal(host, numbers) for host, numbers in others.items()))

    def _refusal(self, host: str, numbers: Sequence[str]) -> str:
        are = f"job {numbers[0]} is a process" if len(numbers) == 1 else f"jobs {', '.join(numbers)} are processes"
        told = " ".join(numbers)
        return (
            f"{are} of {host}, and can be cancelled there only; run python -m nlu.jobs {self._shown} --cancel {told} "
            f"there; {self._way_out(host, told)}"
        )

    def _cancel_here(self, jobs: Sequence[tuple[Path, str]]) -> None:
        running = [job for job in jobs if self._is_alive(*job)]
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


@cache
def _here() -> Mapping[str, str]:
    """Return what names this machine, and this start of it."""
    return {"host": socket.gethostname(), "machine": identity_of(os.getpid()).get("machine", "")}


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
