"""`hydra/launcher=pai`: what is checked before the first submission, where a job's run is kept, how it comes back.

    OSS_FOLDER/code/DIGEST.zip       the code, once for each content
    OSS_FOLDER/conditional-put       shows that the store puts an object but once
    OSS_FOLDER/jobs/TOKEN            which of the jobs of a submission computes: see `nlu.launching.pai.claim`
    OSS_FOLDER/runs/NAME/NUMBER      the mirror of a job's run, unless the command says mirror=

A job runs `python -m nlu.train OVERRIDES hydra.run.dir=... mirror=... resume=auto` in an empty folder. Its mirror keeps
the run while it goes on, so that a job which is started again goes on, and is the way by which results come back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nlu.config.checks.quoting import quoted
from nlu.config.errors import UserError
from nlu.launching.history import project_folder
from nlu.launching.pai import credentials
from nlu.launching.pai.archive import code_files
from nlu.launching.pai.claim import NOBODY
from nlu.launching.pai.command import Program, without_ours
from nlu.launching.pai.packed import NOTHING, Packed, packed
from nlu.launching.pai.peeking import show_tables
from nlu.launching.pai.remembered import completed
from nlu.launching.pai.seen import config_dirs, problems_of_jobs
from nlu.launching.pai.service import DOUBT_S, Service
from nlu.launching.pai.settings import DLC, PREFIX, PaiSettings, mounts_of, settings_of
from nlu.launching.queue import Job, JobRefused, JobState, Look, Ticket
from nlu.launching.queues import Place
from nlu.launching.submissions import FOLDER as RECORD
from nlu.launching.submissions import Submissions
from nlu.runs.mirror import bring_back
from nlu.storage.answers import Denied, Unreachable
from nlu.storage.heartbeat import Marks
from nlu.storage.ledger import Ledger
from nlu.storage.objects import ObjectStore

log = logging.getLogger(__name__)

KEY = f"{PREFIX}.oss_folder"
RUN_DIR = "run"
"""folder of the run, in the empty folder of its job"""
RESULT = "result.json"
PROOF = "conditional-put"
"""where it is tried on the store whether an object is put but once"""
OTHERS = ("wait", "_target_")
"""keys of hydra.launcher that the launcher itself knows"""
PEEK_S = 20.0
"""how often the tables of a running job are fetched, to be shown"""

_UPLOADED: set[str] = set()
"""the stores that have the code of this process"""


def open_pai(place: Place) -> PaiQueue:
    """Return the queue of a backend. Raises UserError with all that is missing or wrong."""
    given = settings_of({key: value for key, value in place.settings.items() if key not in OTHERS})
    steps: list[Callable[[], Any]] = [partial(completed, given), credentials.from_environment]
    made, wrong = [], []
    for step in steps:
        try:
            made.append(step())
        except UserError as error:
            wrong.append(error)
    if wrong and place.compose is not None:
        # By itself it is told when there is something to submit: whoever collects needs no code.
        try:
            code_files(project_folder(), given.include)
        except UserError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        problems = [problem for one in wrong for problem in one.problems]
        raise UserError(*problems, remedy="; ".join(one.remedy for one in wrong if one.remedy))
    return PaiQueue(made[0], place)


class PaiQueue:
    """Jobs on PAI, each with a mirror; results come back into the folders of the submission."""

    poll_s = 5.0
    slowest_poll_s = 20.0

    def __init__(self, settings: PaiSettings, place: Place):
        self._settings, self._place = settings, place
        self._keys = credentials.from_environment()
        self._store = ObjectStore(str(settings.oss_folder), KEY)
        self._opened: Service | None = None
        self._code_name: tuple[str, str] | None = None
        self._named: str | None = None
        self._submissions = Submissions(place.folder)
        self._jobs: dict[str, Job] = {}
        self._peeked_s: dict[str, float] = {}
        self._followed: dict[str, str] = {}
        """by the id of a job that left: which job of its submission computes"""
        self._computed: set[str] = set()
        """ids of jobs that ended well, and had the claim of their submission"""
        self._missed = Marks()
        self.name = "PAI-DLC" if settings.backend == DLC else "MaxCompute"

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Check all jobs, have the code on the store, submit; see `nlu.launching.queue.Queue`.

        Raises JobRefused, before anything is submitted, with everything that is wrong with any of the jobs, and
        Unreachable, an OSError, where the store does not answer.
        """
        try:
            service, own = self._ready(jobs)
        except (JobRefused, Unreachable):
            raise
        except UserError as error:
            raise JobRefused(*error.problems, summary=error.summary, remedy=error.remedy) from None
        tickets = [replace(ticket, job=job) for job, ticket in zip(jobs, service.submit(own), strict=True)]
        self._jobs |= {ticket.id: ticket.job for ticket in tickets}
        return tickets

    def _ready(self, jobs: Sequence[Job]) -> tuple[Service, list[Job]]:
        """Return the service with its code in place, and the jobs as it gets them."""
        settings = self._settings
        code = packed(tuple(settings.include), settings.code_limit_mb, settings.backend != DLC)
        mirrors = {job.token: self.mirror_of(job) for job in jobs}
        problems = problems_of_jobs(jobs, mirrors, code.names, code.within, self._place, mounts_of(settings))
        if problems:
            raise UserError(*problems)
        service = self._service(code)
        # A job that an earlier call left may have begun its run meanwhile.
        self._require_free([job for job in jobs if not service.may_have(job.token)], mirrors)
        self._upload(code, service)
        return service, [replace(job, folder=mirrors[job.token], overrides=self.overrides_of(job)) for job in jobs]

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """See `nlu.launching.queue.Finding`."""
        found = self._service().find([replace(job, folder=self.mirror_of(job)) for job in jobs])
        return [ticket and replace(ticket, job=job) for job, ticket in zip(jobs, found, strict=True)]

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.launching.queue.Queue`; running jobs' tables are shown here as well, as far as there is time."""
        looks = self._looks(ids)
        if threading.current_thread() is threading.main_thread():
            for id, look in looks.items():
                if look.state is JobState.RUNNING and time.monotonic() - self._peeked_s.get(id, 0.0) > PEEK_S:
                    self._peeked_s[id] = time.monotonic()
                    self._peek(id)
        return looks

    def _looks(self, ids: Sequence[str]) -> dict[str, Look]:
        for id in ids:
            # What an earlier command has just submitted may not be shown yet.
            self._job(id)
        looks = self._service().look([self._followed.get(id, id) for id in ids])
        return {id: self._look_of(id, looks[self._followed.get(id, id)]) for id in ids}

    def _look_of(self, id: str, look: Look) -> Look:
        """Return a look at the job that computes, in the place of one that another job's claim made leave."""
        job = self._job(id)
        if job is None or not job.token:
            return look
        missed = self._place.folder / RECORD / f"missed-{job.token}"
        if id in self._followed:
            self._missed.end(missed)
        if look.state is not JobState.DONE or id in self._computed:
            return look
        try:
            worker = self._service().worker_of(self._followed.get(id, id), job.token)
        except Denied as error:
            log.warning("it is not known whether job %d computed or left: %s", job.number, error)
            return look
        if worker == NOBODY:
            return Look(JobState.CANCELLED, reason="its submission was withdrawn")
        if worker is None:
            is_gone = self._missed.still_s(missed) > DOUBT_S
            state, yet = (JobState.LOST, "") if is_gone else (JobState.WAITING, " yet")
            return Look(state, reason=f"it left its submission to another job, which {self.name} does not show{yet}")
        if worker == self._followed.get(id, id):
            self._computed.add(id)
            return look
        log.warning("job %d: %s left its submission to %s, which is followed from now on", job.number, id, worker)
        self._followed[id] = worker
        return self._look_of(id, self._service().look([worker])[worker])

    def cancel(self, ids: Sequence[str]) -> None:
        """See `nlu.launching.queue.Queue`."""
        self._service().cancel([self._followed.get(id, id) for id in ids])

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """Return the end of what the job says, or of the log in its mirror."""
        if said := self._service().log_tail(self._followed.get(id, id), lines):
            return said
        job = self._job(id)
        if job is None:
            return []
        try:
            content = ObjectStore(self.mirror_of(job), KEY).get("log.txt")
        except (FileNotFoundError, Unreachable):
            return []
        return content.decode(errors="replace").splitlines()[-lines:]

    def outcome(self, id: str) -> Any:
        """Bring the run of a job back, and return 0 where it has a result.

        A run whose job ended without one stays in its mirror, to be gone on with.
        """
        job, status = self._job(id), self._ended_well(id)
        if job is None:
            return status
        folder = Path(job.folder)
        try:
            is_there = bring_back(self.mirror_of(job), folder, log.debug)
        except (UserError, OSError) as error:
            log.warning("the run of job %d is not here yet: %s", job.number, error)
            return status
        return 0 if is_there and (folder / RESULT).is_file() else status

    def status(self, id: str) -> Any:
        """Return 0 where the job has a result, here or in its mirror; no run is fetched."""
        job, status = self._job(id), self._ended_well(id)
        if job is None or status == 0 or (Path(job.folder) / RESULT).is_file():
            return status if job is None else 0
        try:
            newest = Ledger(ObjectStore(self.mirror_of(job), KEY)).newest()
        except (UserError, OSError) as error:
            log.debug("the mirror of job %d is not read: %s", job.number, error)
            return status
        kept = {} if newest is None else newest.content.get("loose", {})
        return 0 if RESULT in kept else status

    def _ended_well(self, id: str) -> int | None:
        """Return 0 of a job that ended well, having computed; None of any other."""
        return 0 if self._looks([id])[id].state is JobState.DONE else None

    def mirror_of(self, job: Job) -> str:
        """Return where the run of a job is kept: below mirror= of its command, or below OSS_FOLDER/runs."""
        return self._below(_given(job, "mirror") or f"{self._store.reference.location.rstrip('/')}/{self._runs()}", job)

    def run_dir_of(self, job: Job) -> str:
        """Return the folder of the run as its job sees it: on a disk of its own, or where all its machines see it."""
        if (folder := self._settings.work_folder) is None:
            return RUN_DIR
        return self._below(f"{folder.rstrip('/')}/{self._runs()}", job)

    def _below(self, root: str, job: Job) -> str:
        name = os.path.relpath(job.folder, self._place.folder)
        return root if name == "." else f"{root.rstrip('/')}/{Path(name).as_posix()}"

    def _runs(self) -> str:
        """Return where runs of this folder are kept, by a name that every machine that sees the folder knows."""
        if self._named is None:
            drawn = self._submissions.name()
            self._named = f"{_plain(self._place.folder.name)}-{drawn}"
        return f"runs/{self._named}"

    def overrides_of(self, job: Job) -> tuple[str, ...]:
        """Return what the job is started with: its own overrides, and where its run lies."""
        trial = [text for text in job.overrides if _key_of(text) == "trial"]
        own = [quoted(f"hydra.run.dir={self.run_dir_of(job)}"), quoted(f"mirror={self.mirror_of(job)}"), "resume=auto"]
        return (*without_ours(job.overrides), *trial, *own)

    def _require_free(self, jobs: Sequence[Job], mirrors: Mapping[str, str]) -> None:
        """Raise UserError where a mirror holds a run that the command does not go on with."""
        problems = []
        for job in jobs:
            if _given(job, "resume") == "auto" or _given(job, "trial") is not None:
                continue
            if Ledger(ObjectStore(mirrors[job.token], KEY)).newest() is not None:
                problems.append(
                    f"job {job.number}: {mirrors[job.token]} holds a run; set resume=auto to go on with it, or choose "
                    "another folder"
                )
        if problems:
            raise UserError(*problems)

    def _upload(self, code: Packed, service: Service) -> None:
        """Have the code where the jobs look for it, once for each content. Raises UserError where the store overwrites
        what stands there."""
        place = f"{self._store.shown} {self._settings.project} {code.archive.digest}"
        if place not in _UPLOADED:
            # Where the store does not heed the condition, each of two jobs would have the claim.
            self._store.prove_conditional_put(PROOF)
            service.upload(code)
            _UPLOADED.add(place)

    def _service(self, code: Packed | None = None) -> Service:
        """Return the service; without code where jobs are only looked after.

        It stays the same as long as the code does, since it knows the jobs of a call that was not answered.
        """
        name = (code.archive.digest, code.within) if code is not None else None
        if self._opened is None or (code is not None and self._code_name != name):
            settings, code = self._settings, code or NOTHING
            program = Program(
                self._place.module, settings.python, tuple(settings.before), code.within,
                tuple(f"--config-dir={folder}" for folder in config_dirs(self._place)),
            )  # fmt: skip
            kind: type[Service]
            if settings.backend == DLC:
                from nlu.launching.pai.dlc import DlcQueue as kind
            else:
                from nlu.launching.pai.maxcompute import MaxComputeQueue as kind
            self._opened, self._code_name = kind(settings, self._keys, self._store, code, program), name
        return self._opened

    def _job(self, id: str) -> Job | None:
        """Return a job by its id, also one that another command submitted into this folder."""
        if id not in self._jobs:
            for known in self._submissions.changed():
                if known.ticket is not None:
                    self._jobs[known.ticket.id] = known.job
                    self._service().doubts.note_new(known.ticket.id, time.time() - known.time_s)
        return self._jobs.get(id)

    def _peek(self, id: str) -> None:
        if (job := self._job(id)) is not None:
            show_tables(ObjectStore(self.mirror_of(job), KEY), Path(job.folder))


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() or letter in "._-" else "_" for letter in name)


def _key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _given(job: Job, key: str) -> str | None:
    """Return what the last override of a key says, without its quotes; None where none does."""
    found = [text.partition("=")[2] for text in job.overrides if _key_of(text) == key]
    return found[-1].strip("'\"") if found and found[-1] not in ("null", "") else None
