"""A job of a cluster that runs several trials of a search at a time, each with its share of its GPUs and cores.

The trials lie in one folder each, below a folder that this job and the search see (`nlu.jobs.shared` writes them).
A trial belongs to the job that first creates its file `taken`. It runs as a process of this machine, with its own log,
and this job writes `ended.json` once that process has ended. Then it takes the next trial. It ends when no trial has
been left for a while, or when its time is nearly up: then its trials save their state, and continue in another job.
"""

import os
import pickle
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from nlu.config.submitted import time_signal
from nlu.jobs.local import LocalQueue, signal_job
from nlu.jobs.queue import Job, JobState, QueueContext, Ticket
from nlu.runs.provenance import usable_cores
from nlu.storage.files import read_json, write_json

WORK, TAKEN, CANCELLED, ENDED, LOG = "work.pkl", "taken", "cancelled", "ended.json", "log"
"""in the folder of a trial: what its process calls; the token of the job that took it; whether it is to end; the
process that ended, and why if it left no result; a link to its output"""
CLOSED = "closed"
"""in the folder of a job: it takes no further trial"""
HOSTS = "jobs"
"""the folder of the jobs, beside those of the trials"""
IDLE_S = 30.0
"""how long a job without a trial waits for one: a search draws the next one within seconds"""
POLL_S = 0.5
KILL_S = 30.0
"""how long a trial that is cancelled may still run"""
NO_TIMEOUT_MIN = 60 * 24 * 60


def taken(folder: Path, by: str) -> bool:
    """Take a trial; returns whether nobody had taken it before."""
    try:
        # Created with its content, also for those that look meanwhile.
        own = folder / f".{TAKEN}-{by}"
        own.write_text(by, encoding="utf-8")
        os.link(own, folder / TAKEN)
        own.unlink()
    except FileExistsError:
        own.unlink(missing_ok=True)
        # NFS may say so of the file that this call has created, if the first answer was lost.
        return taken_by(folder) == by
    return True


def taken_by(folder: Path) -> str | None:
    """Return the token of the job that took a trial; None before."""
    try:
        return (folder / TAKEN).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def folders_of(base: Path) -> Iterator[Path]:
    """Yield the folders of all trials, in the order in which they were handed over."""
    for name in sorted(os.listdir(base)):
        if name != HOSTS and _is_ours(base / name / WORK):
            yield base / name


def _is_ours(file: Path) -> bool:
    """Whether a file exists and belongs to this user: what others could write is never unpickled."""
    try:
        return file.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


@dataclass
class _Running:
    folder: Path
    queue: LocalQueue
    ticket: Ticket
    asked_s: float | None = None
    """when it was first asked to end"""

    @property
    def process(self) -> str:
        return self.ticket.id.rpartition("/")[2]


@dataclass(frozen=True)
class Host:
    """What such a job calls; it can be pickled."""

    base: Path
    count: int
    """trials at a time"""
    cpus: int | None
    """cores of this job; None = those that this process may use"""

    def __call__(self, job: Job) -> JobReturn:
        """Run trials until none is left or the time is nearly up."""
        is_over: list[int] = []
        for number in (time_signal(), signal.SIGTERM):
            signal.signal(number, lambda received, _: is_over.append(received))
        closed = self.base / HOSTS / job.token / CLOSED
        # Of an earlier start of this job.
        closed.unlink(missing_ok=True)
        running: dict[int, _Running] = {}
        waiting = list(self._left_over(job.token))
        idle_since_s = time.monotonic()
        while True:
            if is_over:
                # First, so that the search asks for another job for what stops now.
                closed.touch()
            self._look_after(running, is_over=bool(is_over))
            if not is_over:
                self._fill(running, waiting, job.token)
            if running:
                idle_since_s = time.monotonic()
            elif is_over or time.monotonic() - idle_since_s > IDLE_S:
                closed.touch()
                # A trial may have been handed over in this moment, by a search that counts on this job.
                if is_over or not any(taken_by(folder) is None for folder in self._open()):
                    break
                closed.unlink()
            time.sleep(POLL_S)
        found = JobReturn(status=JobStatus.COMPLETED)
        found.return_value = 0
        return found

    def _open(self) -> Iterator[Path]:
        for folder in folders_of(self.base):
            if not (folder / ENDED).exists() and not (folder / CANCELLED).exists():
                yield folder

    def _left_over(self, token: str) -> Iterator[Path]:
        """Yield the trials that an earlier start of this job took, whose processes are gone; those that ended end."""
        for folder in folders_of(self.base):
            if taken_by(folder) != token or (folder / ENDED).exists():
                continue
            if results := sorted(folder.glob("*/*/*_result.pkl"), key=lambda path: path.stat().st_mtime):
                write_json(folder / ENDED, {"process": results[-1].parent.name})
            elif (folder / CANCELLED).exists():
                write_json(folder / ENDED, {"lost": "it was cancelled"})
            else:
                yield folder

    def _fill(self, running: dict[int, _Running], waiting: list[Path], token: str) -> None:
        for place in range(self.count):
            if place in running:
                continue
            folder = waiting.pop(0) if waiting else self._next(token)
            if folder is None:
                return
            try:
                running[place] = self._start(folder, place)
            except Exception as error:
                # The other trials of this job go on; this one is lost, as if its own job had ended.
                print(f"the trial in {folder} could not begin: {error!r}", flush=True)
                write_json(folder / ENDED, {"lost": f"it could not begin: {type(error).__name__}: {error}"})

    def _next(self, token: str) -> Path | None:
        return next((folder for folder in self._open() if taken_by(folder) is None and taken(folder, token)), None)

    def _start(self, folder: Path, place: int) -> _Running:
        with open(folder / WORK, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                raise PermissionError(f"{file.name} belongs to another user")
            work, job = pickle.load(file)
        shares = [f"+hydra.job.env_set.{name}='{value}'" for name, value in self._share(place).items()]
        settings = {"submitit_folder": f"{folder}/%j", "timeout_min": NO_TIMEOUT_MIN, "stderr_to_stdout": True}
        queue = LocalQueue(QueueContext(settings, folder, work=work))
        (ticket,) = queue.submit([replace(job, overrides=(*job.overrides, *shares))])
        link = folder / f".{LOG}"
        link.unlink(missing_ok=True)
        # Relative: another machine may see the folder under another name.
        link.symlink_to(os.path.relpath(str(ticket.log), folder))
        link.replace(folder / LOG)
        print(f"trial {job.number} begins in place {place}: process {ticket.id.rpartition('/')[2]}", flush=True)
        return _Running(folder, queue, ticket)

    def _share(self, place: int) -> Mapping[str, str]:
        cores = self.cpus or usable_cores()
        found = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // self.count))}
        if names := self._gpus():
            own = names[place * len(names) // self.count : (place + 1) * len(names) // self.count]
            found["CUDA_VISIBLE_DEVICES"] = ",".join(own or [names[place % len(names)]])
        return found

    @staticmethod
    def _gpus() -> list[str]:
        if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            return [name for name in named.split(",") if name not in ("", "-1")]
        # A cluster whose jobs see no other devices than their own need not name them.
        return list(map(str, range(int(os.environ.get("SLURM_GPUS_ON_NODE", 0)))))

    def _look_after(self, running: dict[int, _Running], *, is_over: bool) -> None:
        """Note the trials that have ended, and have others end that were cancelled, or all."""
        for place, each in list(running.items()):
            look = each.queue.look([each.ticket.id])[each.ticket.id]
            if look.state.is_final:
                lost: Mapping[str, Any] = {"lost": look.reason} if look.state == JobState.LOST else {}
                write_json(each.folder / ENDED, {"process": each.process, **lost})
                del running[place]
            elif is_over or (each.folder / CANCELLED).exists():
                each.asked_s = each.asked_s or time.monotonic()
                is_late = not is_over and time.monotonic() - each.asked_s > KILL_S
                # Repeated: a process that is just starting does not listen.
                signal_job(int(each.process), signal.SIGKILL if is_late else signal.SIGTERM)


def ended(folder: Path) -> dict[str, Any] | None:
    """Return what a job noted about a trial that has ended; None before."""
    return read_json(folder / ENDED)
