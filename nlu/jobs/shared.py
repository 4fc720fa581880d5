"""Several trials of a search in one job of a cluster (`hydra.launcher.trials_per_job`), as a queue.

A trial is handed over as a folder that its work lies in. Jobs of the cluster (`nlu.jobs.shared_host`) take the
trials from there and run several at a time. So a trial waits in the cluster's queue only if all jobs are full. This
queue submits a job where the present ones have too few places. The id of a trial is its token.

A trial runs as long as the job that took it does: if that is lost, the trial is too, and the search continues it. A
job that is queued again by its cluster runs its trials again, which continue from their state.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.utils import JobStatus

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.jobs.queue import Job, JobRefused, JobState, Look, Queue, QueueContext, Ticket
from nlu.jobs.shared_host import (
    CANCELLED,
    CLOSED,
    ENDED,
    HOSTS,
    LOG,
    WORK,
    Host,
    ended,
    folders_of,
    taken,
    taken_by,
)
from nlu.jobs.slurm import GRACE_S, SlurmQueue
from nlu.jobs.submissions import new_tokens
from nlu.jobs.submitit_jobs import read_outcome, result_file, tail
from nlu.storage.files import write_bytes, write_json

KEY = "trials_per_job"
LAUNCHER = "hydra.launcher"
FOLDER = "shared"
PATIENCE_S = 10.0
"""how long a trial waits for a place in a full job before another job is submitted"""
_TOKEN = re.compile(r"[\w-]+")


def slurm_queue(context: QueueContext) -> Queue:
    """Return the queue of Slurm for these settings: with a job for each run, or one for several trials."""
    return SharedQueue(context) if (context.settings.get(KEY) or 1) > 1 else SlurmQueue(context)


@dataclass
class _Known:
    """What this process knows of the trials and jobs of a folder; all its queues share it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: set[str] = field(default_factory=set)
    """trials"""
    over: set[str] = field(default_factory=set)
    """jobs"""
    waits_s: dict[str, float] = field(default_factory=dict)
    """when a trial was first seen that waits for a place"""
    missed_s: dict[str, float] = field(default_factory=dict)
    """when a trial was first seen whose job has ended"""


class SharedQueue:
    """A `nlu.jobs.queue.Queue` of trials that share jobs; `jobs` opens the queue of these jobs."""

    name = "slurm (shared)"
    poll_s = 2.0
    slowest_poll_s = 30.0
    is_elsewhere = False
    _shared: dict[Path, _Known] = {}

    def __init__(self, context: QueueContext, jobs: Callable[[QueueContext], Any] = SlurmQueue):
        self._context, self._count = context, int(context.settings[KEY])
        folder = context.settings.get("submitit_folder") or f"{context.folder}/.submitit/%j"
        top = Path(os.path.abspath(Path(str(folder).replace("%j", "")).expanduser()))
        self._base = top / FOLDER
        cpus = context.settings.get("cpus")
        settings = {**context.settings, "submitit_folder": f"{self._base / HOSTS}/%j", KEY: None}
        host = Host(self._base, self._count, cpus)
        self._jobs = jobs(QueueContext(settings, context.folder, context.module, host))
        self._known = self._shared.setdefault(self._base, _Known())

    def check(self, jobs: Sequence[Job]) -> None:
        """See `nlu.jobs.queue.Checking`."""
        if problems := [*self._problems(jobs), *self._device_problems(jobs)]:
            raise UserError(*problems)

    def _problems(self, jobs: Sequence[Job]) -> list[str]:
        settings, is_set = self._context.settings, f"{LAUNCHER}.{KEY} is {self._count}"
        found = []
        if not all(any(override.startswith("trial=") for override in job.overrides) for job in jobs):
            found.append(f"{is_set}, but only the trials of a search share a job; leave it out")
        for key in ("nodes", "tasks_per_node"):
            if (value := settings.get(key) or 1) > 1:
                found.append(f"{is_set}, but {LAUNCHER}.{key} is {value}; they share a process; set it to 1")
        for key in ("gpus", "cpus"):
            if (value := settings.get(key)) and value % self._count:
                found.append(f"{is_set}, but {LAUNCHER}.{key} is {value}; set it to a multiple, such as {self._count}")
        return found

    def _device_problems(self, jobs: Sequence[Job]) -> list[str]:
        gpus, compose = self._context.settings.get("gpus"), self._context.compose
        if not gpus or compose is None:
            return []
        found: dict[str, None] = {}
        for job in jobs:
            trainer = compose(job).get("trainer") or {}
            devices = trainer.get("devices")
            if isinstance(devices, int) and devices * self._count > gpus and trainer.get("device") != "cpu":
                of_job = counted(gpus, "GPU")
                found[
                    f"trainer.devices is {devices}, but {self._count} trials share a job of {of_job}; set "
                    f"{LAUNCHER}.gpus to {devices * self._count}, or {LAUNCHER}.{KEY} to {max(1, gpus // devices)}"
                ] = None
        return list(found)

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Hand over trials, and submit a job if the present ones are full; it may be repeated after an OSError."""
        import cloudpickle

        assert self._context.work is not None, "this queue was opened to look after trials"
        if problems := self._problems(jobs):
            raise JobRefused(*problems)
        for job in jobs:
            (self._base / job.token).mkdir(parents=True, exist_ok=True)
            if not (self._base / job.token / WORK).exists():
                write_bytes(self._base / job.token / WORK, cloudpickle.dumps((self._context.work, job)))
        try:
            self._provide(is_patient=True)
        except JobRefused:
            for job in jobs:
                if taken(self._base / job.token, CANCELLED):
                    shutil.rmtree(self._base / job.token, ignore_errors=True)
            with suppress(OSError):
                (self._base / HOSTS).rmdir()
                self._base.rmdir()
            raise
        return [self._ticket(job) for job in jobs]

    def _ticket(self, job: Job) -> Ticket:
        return Ticket(job, job.token, str(self._base / job.token / LOG))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """See `nlu.jobs.queue.Finding`."""
        return [self._ticket(job) if (self._base / job.token / WORK).exists() else None for job in jobs]

    def _provide(self, *, is_patient: bool) -> None:
        """Submit as many jobs as the open trials need that the present jobs have no place for.

        If it `is_patient`, a trial may wait for one that runs.
        """
        with self._known.lock:
            trials = self._open_trials()
            if is_patient:
                trials = [folder for folder in trials if taken_by(folder) is None]
            wanted = len(trials) - self._count * len(self._live_jobs()) if trials else 0
            for token in new_tokens(max(0, -(-wanted // self._count))):
                # Before the job: after a kill in between, it is found by its token.
                (self._base / HOSTS / token).mkdir(parents=True, exist_ok=True)
                try:
                    self._jobs.submit([Job(0, str(self._base / HOSTS), (), token)])
                except (JobRefused, OSError):
                    with suppress(OSError):
                        (self._base / HOSTS / token).rmdir()
                    raise

    def _open_trials(self) -> list[Path]:
        found = []
        for folder in folders_of(self._base):
            if folder.name not in self._known.ended:
                if (folder / CANCELLED).exists() or ended(folder) is not None:
                    self._known.ended.add(folder.name)
                else:
                    found.append(folder)
        return found

    def _live_jobs(self) -> list[str]:
        """Return the tokens of the jobs that wait or run, and take trials."""
        ids = {token: id for token, id in self._job_ids().items() if token not in self._known.over}
        looks = self._jobs.look(list(ids.values())) if ids else {}
        self._known.over |= {token for token, id in ids.items() if looks[id].state.is_final}
        return [
            token
            for token in ids
            if token not in self._known.over and not (self._base / HOSTS / token / CLOSED).exists()
        ]

    def _job_ids(self, tokens: Sequence[str] | None = None) -> dict[str, str]:
        if tokens is None:
            try:
                tokens = sorted(os.listdir(self._base / HOSTS))
            except FileNotFoundError:
                return {}
        tickets = self._jobs.find([Job(0, str(self._base / HOSTS), (), token) for token in tokens])
        return {token: each.id for token, each in zip(tokens, tickets, strict=True) if each is not None}

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.jobs.queue.Queue`. Submits a job where trials wait and their jobs have ended."""
        takers = {id: taken_by(self._folder(id)) for id in ids}
        open_ones = {taker for id, taker in takers.items() if taker and ended(self._folder(id)) is None} - {CANCELLED}
        jobs = self._job_ids(sorted(open_ones))
        looks = self._jobs.look(list(jobs.values())) if jobs else {}
        of_jobs = {token: looks[id] for token, id in jobs.items()}
        found = {id: self._look(id, takers[id], of_jobs) for id in ids}
        waiting = [id for id, look in found.items() if takers[id] is None and look.state is JobState.WAITING]
        now_s = time.monotonic()
        # A search hands over the next trial before the process of the last one has ended.
        is_late = any(now_s - self._known.waits_s.setdefault(id, now_s) > PATIENCE_S for id in waiting)
        if is_late and self._context.work is not None:
            # If that is not possible now, the next look tries again.
            with suppress(OSError, JobRefused):
                self._provide(is_patient=False)
        return found

    def _look(self, id: str, taker: str | None, jobs: Mapping[str, Look]) -> Look:
        folder = self._folder(id)
        if not (folder / WORK).exists():
            return Look(JobState.LOST, reason="its folder is gone")
        is_cancelled = (folder / CANCELLED).exists()
        if (end := ended(folder)) is not None:
            outcome = self.outcome(id)
            if is_cancelled or outcome is None:
                return Look(JobState.CANCELLED if is_cancelled else JobState.LOST, reason=end.get("lost"))
            is_done = getattr(outcome, "status", JobStatus.COMPLETED) == JobStatus.COMPLETED
            return Look(JobState.DONE if is_done else JobState.FAILED)
        if taker is None:
            return Look(JobState.CANCELLED if is_cancelled else JobState.WAITING, reason="for a place in a job")
        if taker == CANCELLED:
            return Look(JobState.CANCELLED)
        of_job = jobs.get(taker, Look(JobState.LOST, reason="the job that took it is not known"))
        if not of_job.state.is_final:
            return of_job
        # The file system may show the last words of a job late.
        first_s = self._known.missed_s.setdefault(id, time.monotonic())
        if time.monotonic() - first_s < GRACE_S:
            return Look(JobState.RUNNING, of_job.node, "its result is awaited")
        if is_cancelled:
            return Look(JobState.CANCELLED, of_job.node)
        reason = f"the job that ran it ended: {of_job.reason or of_job.state}"
        # The search gives it another token now. Without this note it would be counted as open by every later look, and
        # a job that the queue starts again would continue it.
        with suppress(OSError):
            write_json(folder / ENDED, {"lost": reason})
        self._known.ended.add(id)
        return Look(JobState.LOST, of_job.node, reason)

    def cancel(self, ids: Sequence[str]) -> None:
        """Have trials save their state and end. Jobs that wait are cancelled too if no trial is left."""
        for folder in map(self._folder, ids):
            if folder.is_dir() and ended(folder) is None:
                (folder / CANCELLED).touch()
                taken(folder, CANCELLED)
        with self._known.lock:
            jobs = {} if self._open_trials() else self._job_ids()
            looks = self._jobs.look(list(jobs.values())) if jobs else {}
            if waiting := [id for id, look in looks.items() if look.state is JobState.WAITING]:
                self._jobs.cancel(waiting)

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        return tail([self._folder(id) / LOG], lines)

    def outcome(self, id: str) -> Any:
        process = (ended(self._folder(id)) or {}).get("process")
        return read_outcome(result_file(self._folder(id) / id / process, process)) if process else None

    status = outcome

    def _folder(self, id: str) -> Path:
        if not _TOKEN.fullmatch(id):
            raise UserError(f"{id} is not a trial in a shared job; its id is its token")
        return self._base / id
