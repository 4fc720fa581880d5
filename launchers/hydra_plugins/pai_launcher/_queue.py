"""`hydra/launcher=pai`: the checks before a submission, where the run of a job is kept, and how it comes back.

    OSS_FOLDER/code/DIGEST.zip       the archive of the code
    OSS_FOLDER/conditional-put       shows that the store does not overwrite an object if it is asked not to
    OSS_FOLDER/jobs/TOKEN            which of the jobs of a submission computes: see `_claim`
    OSS_FOLDER/runs/NAME/NUMBER      the mirror of the run of a job, unless the command has mirror=

A job runs `python -m nlu.train OVERRIDES hydra.run.dir=... mirror=... resume=auto` in an empty folder. The mirror keeps
the run up to date. A job that is started again continues from it, and results come back through it.
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

from nlu.config.checks.reading import quoted
from nlu.config.errors import UserError
from nlu.launching.queue import Job, JobRefused, JobState, Look, QueueContext, Ticket
from nlu.launching.submissions import FOLDER as RECORD
from nlu.launching.submissions import Submissions, project_folder
from nlu.runs.mirror import bring_back
from nlu.runs.mirrored import NOTE
from nlu.storage.bucket import Denied, Unreachable
from nlu.storage.files import write_bytes, write_json
from nlu.storage.heartbeat import Marks
from nlu.storage.ledger import Ledger
from nlu.storage.objects import ObjectStore

from ._checks import config_dirs, problems_of_jobs
from ._claim import NO_ATTEMPT
from ._code import NOTHING, CodePackage, code_files, packed
from ._command import MODULE, Program, value_of, without_ours
from ._remembered import completed
from ._requests import Credentials
from ._service import DOUBT_S, Service
from ._settings import DLC, PREFIX, PaiSettings, mounts_of, settings_of

log = logging.getLogger(__name__)

KEY = f"{PREFIX}.oss_folder"
RUN_DIR = "run"
"""the folder of the run, in the empty folder of its job"""
RESULT = "result.json"
PROOF = "conditional-put"
"""the object that tries whether the store refuses to overwrite it"""
OTHERS = ("wait", "_target_")
"""keys of hydra.launcher that the launcher itself uses"""
PEEK_S = 20.0
"""how often the tables of a running job are fetched, to show them"""
PEEKED = ("train.tsv", "valid.tsv", "log.txt", "config.yaml")
"""what is fetched: never a checkpoint"""

_UPLOADED: set[str] = set()
"""the stores that have the code of this process"""


def open_pai(context: QueueContext) -> PaiQueue:
    """Return the queue of a backend. Raises UserError with all that is missing or wrong."""
    given = settings_of({key: value for key, value in context.settings.items() if key not in OTHERS})
    steps: list[Callable[[], Any]] = [partial(completed, given), Credentials.from_environment]
    made, wrong = [], []
    for step in steps:
        try:
            made.append(step())
        except UserError as error:
            wrong.append(error)
    if wrong and context.compose is not None:
        # A command that only collects needs no code, and a submission with valid settings checks it later.
        try:
            code_files(project_folder(), given.include)
        except UserError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        problems = [problem for one in wrong for problem in one.problems]
        raise UserError(*problems, remedy="; ".join(one.remedy for one in wrong if one.remedy))
    return PaiQueue(made[0], context)


class PaiQueue:
    """Jobs on PAI, each with a mirror; results come back into the folders of the submission."""

    poll_s = 5.0
    slowest_poll_s = 20.0
    is_elsewhere = True

    def __init__(self, settings: PaiSettings, context: QueueContext):
        self._settings, self._context = settings, context
        self._keys = Credentials.from_environment()
        self._store = ObjectStore(str(settings.oss_folder), KEY)
        self._opened: Service | None = None
        self._code_name: tuple[str, str] | None = None
        self._named: str | None = None
        self._submissions = Submissions(context.folder)
        self._jobs: dict[str, Job] = {}
        self._peeked_s: dict[str, float] = {}
        self._followed: dict[str, str] = {}
        """which job of the same submission computes, by the id of a job that ended for it"""
        self._computed: set[str] = set()
        """ids of jobs that succeeded and had the claim of their submission"""
        self._missing = Marks()
        self.name = "PAI-DLC" if settings.backend == DLC else "MaxCompute"

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Check all jobs, upload the code, submit; see `nlu.launching.queue.Queue`.

        Raises JobRefused, before anything is submitted, with everything that is wrong with any of the jobs, and
        Unreachable, an OSError, if the store does not answer.
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

    def check(self, jobs: Sequence[Job]) -> None:
        """See `nlu.launching.queue.Checking`."""
        # The name of this folder in the store is drawn when jobs are submitted.
        is_named = self._submissions.has_name()
        mirrors = {job.token: self.mirror_of(job) if is_named else self._unnamed_mirror_of(job) for job in jobs}
        self._service(self._valid_code(jobs, mirrors))
        self._require_free([job for job in jobs if is_named or _given(job, "mirror")], mirrors)

    def _valid_code(self, jobs: Sequence[Job], mirrors: Mapping[str, str]) -> CodePackage:
        """Return the packed code. Raises UserError with everything that is wrong with the jobs."""
        settings = self._settings
        code = packed(tuple(settings.include), settings.code_limit_mb, settings.backend != DLC)
        problems = problems_of_jobs(jobs, mirrors, code.names, code.within, self._context, mounts_of(settings))
        if settings.workers > 1 and self._context.module != MODULE:
            problems.append(
                f"{PREFIX}.workers is {settings.workers}, but only {MODULE} is spread over machines; set it to 1"
            )
        if problems:
            raise UserError(*problems)
        return code

    def _ready(self, jobs: Sequence[Job]) -> tuple[Service, list[Job]]:
        """Upload the code; returns the service, and the jobs in the form in which it gets them."""
        mirrors = {job.token: self.mirror_of(job) for job in jobs}
        code = self._valid_code(jobs, mirrors)
        service = self._service(code)
        # A job of an earlier call without an answer may have begun its run.
        self._require_free([job for job in jobs if not service.may_have(job.token)], mirrors)
        self._upload(code, service)
        return service, [replace(job, folder=mirrors[job.token], overrides=self.overrides_of(job)) for job in jobs]

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        found = self._service().find([replace(job, folder=self.mirror_of(job)) for job in jobs])
        return [ticket and replace(ticket, job=job) for job, ticket in zip(jobs, found, strict=True)]

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """See `nlu.launching.queue.Queue`. Fetches the tables of running jobs too, so that they can be shown here."""
        looks = self._looks(ids)
        # The threads of a search show no table.
        if threading.current_thread() is threading.main_thread():
            for id, look in looks.items():
                if look.state is JobState.RUNNING and time.monotonic() - self._peeked_s.get(id, 0.0) > PEEK_S:
                    # Before the fetch, so that one that fails is not repeated at each look.
                    self._peeked_s[id] = time.monotonic()
                    self._peek(id)
        return looks

    def _looks(self, ids: Sequence[str]) -> dict[str, Look]:
        for id in ids:
            # Reads when the job was submitted: the service may not show a new job yet.
            self._job(id)
        looks = self._service().look([self._followed.get(id, id) for id in ids])
        return {id: self._look_of(id, looks[self._followed.get(id, id)]) for id in ids}

    def _look_of(self, id: str, look: Look) -> Look:
        """Return the state of a job, or of another job of its submission if that has the claim."""
        job = self._job(id)
        if job is None or not job.token:
            return look
        missed = self._context.folder / RECORD / f"missed-{job.token}"
        if id in self._followed:
            self._missing.end(missed)
        if look.state is not JobState.DONE or id in self._computed:
            return look
        try:
            worker = self._service().worker_of(self._followed.get(id, id), job.token)
        except Denied as error:
            log.warning("it is not known whether job %d computed, or ended for another job: %s", job.number, error)
            return look
        if worker == NO_ATTEMPT:
            return Look(JobState.CANCELLED, reason="its submission was withdrawn")
        if worker is None:
            is_gone = self._missing.still_s(missed) > DOUBT_S
            state, yet = (JobState.LOST, "") if is_gone else (JobState.WAITING, " yet")
            return Look(state, reason=f"it left its submission to another job, which {self.name} does not show{yet}")
        if worker == self._followed.get(id, id):
            self._computed.add(id)
            return look
        log.warning("job %d: %s left its submission to %s, which is followed from now on", job.number, id, worker)
        self._followed[id] = worker
        return self._look_of(id, self._service().look([worker])[worker])

    def cancel(self, ids: Sequence[str]) -> None:
        self._service().cancel([self._followed.get(id, id) for id in ids])

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """Return the last lines of the output of the job, or of the log in its mirror."""
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

    def outcome(self, id: str) -> int | None:
        """Fetch the run of a job, and return 0 if it has a result.

        A run without a result stays in its mirror, from which another job can continue.
        """
        job, status = self._job(id), self._ended_well(id)
        if job is None or not self._has_run(job):
            return status
        folder = Path(job.folder)
        try:
            is_there = bring_back(self.mirror_of(job), folder, log.debug)
        except (UserError, OSError) as error:
            log.warning("the run of job %d is not here yet: %s", job.number, error)
            return status
        # The result counts, not the state of the job: a job may fail after its run was complete.
        return 0 if is_there and (folder / RESULT).is_file() else status

    def status(self, id: str) -> int | None:
        """Return 0 if the job has a result, here or in its mirror; fetches no run."""
        job, status = self._job(id), self._ended_well(id)
        if job is None or not self._has_run(job) or status == 0 or (Path(job.folder) / RESULT).is_file():
            return status if job is None or not self._has_run(job) else 0
        try:
            newest = Ledger(ObjectStore(self.mirror_of(job), KEY)).newest()
        except (UserError, OSError) as error:
            log.debug("the mirror of job %d is not read: %s", job.number, error)
            return status
        kept = {} if newest is None else newest.content.get("loose", {})
        return 0 if RESULT in kept else status

    def _ended_well(self, id: str) -> int | None:
        """Return 0 for a job that computed and succeeded, None for any other."""
        return 0 if self._looks([id])[id].state is JobState.DONE else None

    def mirror_of(self, job: Job) -> str:
        """Return the mirror of the run of a job: below mirror= of its command, or below OSS_FOLDER/runs.

        A job without a run has an empty one.
        """
        return self._below(_given(job, "mirror") or f"{self._store.reference.location.rstrip('/')}/{self._runs()}", job)

    def _unnamed_mirror_of(self, job: Job) -> str:
        return self._below(_given(job, "mirror") or f"{self._store.reference.location.rstrip('/')}/runs/NAME", job)

    def _has_run(self, job: Job) -> bool:
        """Whether a job may have left a run; a queue that another command opened does not know what its jobs run."""
        return self._context.module == MODULE and Path(job.folder).is_relative_to(self._context.folder)

    def run_dir_of(self, job: Job) -> str:
        """Return the folder of the run in the job: on its disk, or in a mount that all its machines share."""
        if (folder := self._settings.work_folder) is None:
            return RUN_DIR
        return self._below(f"{folder.rstrip('/')}/{self._runs()}", job)

    def _below(self, root: str, job: Job) -> str:
        name = os.path.relpath(job.folder, self._context.folder)
        if name.startswith(".."):
            # A single job without a run has the working folder.
            name = str(job.number)
        return root if name == "." else f"{root.rstrip('/')}/{Path(name).as_posix()}"

    def _runs(self) -> str:
        """Return the place of the runs of this folder in the store, the same for every machine that sees the folder."""
        if self._named is None:
            drawn = self._submissions.name()
            self._named = f"{_plain(self._context.folder.name)}-{drawn}"
        return f"runs/{self._named}"

    def overrides_of(self, job: Job) -> tuple[str, ...]:
        """Return the overrides of the started job: its own ones, and those that place its run."""
        if self._context.module != MODULE:
            return job.overrides
        trial = [text for text in job.overrides if _key_of(text) == "trial"]
        own = [quoted(f"hydra.run.dir={self.run_dir_of(job)}"), quoted(f"mirror={self.mirror_of(job)}"), "resume=auto"]
        return (*without_ours(job.overrides), *trial, *own)

    def _require_free(self, jobs: Sequence[Job], mirrors: Mapping[str, str]) -> None:
        """Raise UserError if a mirror holds a run and the command does not continue it."""
        problems = []
        for job in jobs if self._context.module == MODULE else ():
            if _given(job, "resume") == "auto" or _given(job, "trial") is not None:
                continue
            if Ledger(ObjectStore(mirrors[job.token], KEY)).newest() is not None:
                problems.append(
                    f"job {job.number}: {mirrors[job.token]} holds a run; set resume=auto to continue it, or choose "
                    "another folder"
                )
        if problems:
            raise UserError(*problems)

    def _upload(self, code: CodePackage, service: Service) -> None:
        """Upload the code once for each content. Raises UserError if the store ignores the condition of a put."""
        place = f"{self._store.shown} {self._settings.project} {code.archive.digest}"
        if place not in _UPLOADED:
            # With such a store two jobs of one submission would both have the claim.
            self._store.prove_conditional_put(PROOF)
            service.upload(code)
            _UPLOADED.add(place)

    def _service(self, code: CodePackage | None = None) -> Service:
        """Return the service. To look after jobs it needs no code.

        The same code gives the same object, which knows the jobs of calls that got no answer.
        """
        name = (code.archive.digest, code.within) if code is not None else None
        if self._opened is None or (code is not None and self._code_name != name):
            settings, code = self._settings, code or NOTHING
            program = Program(
                self._context.module,
                settings.python,
                tuple(settings.before),
                tuple(settings.after),
                code.within,
                tuple(f"--config-dir={folder}" for folder in config_dirs(self._context)),
            )
            kind: type[Service]
            if settings.backend == DLC:
                from ._dlc import DlcQueue as kind
            else:
                from ._maxcompute import MaxComputeQueue as kind
            self._opened, self._code_name = kind(settings, self._keys, self._store, code, program), name
        return self._opened

    def _job(self, id: str) -> Job | None:
        """Return a job by its id, also a job that another command submitted into this folder."""
        if id not in self._jobs:
            for known in self._submissions.changed():
                if known.ticket is not None:
                    self._jobs[known.ticket.id] = known.job
                    self._service().ambiguous.note_new(known.ticket.id, time.time() - known.time_s)
        return self._jobs.get(id)

    def _peek(self, id: str) -> None:
        if (job := self._job(id)) is not None and self._has_run(job):
            show_tables(ObjectStore(self.mirror_of(job), KEY), Path(job.folder))


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() or letter in "._-" else "_" for letter in name)


def _key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _given(job: Job, key: str) -> str | None:
    return value_of(job.overrides, key)


def show_tables(mirror: ObjectStore, folder: Path) -> None:
    """Copy the tables of a mirror into a folder, if the store answers."""
    try:
        newest = Ledger(mirror).newest()
        names = [name for name in PEEKED if newest is not None and name in newest.content.get("loose", {})]
        contents = {name: mirror.get(name) for name in names}
    except (OSError, UserError) as error:
        log.debug("the run in %s is not shown: %s", mirror.shown, error)
        return
    if not contents:
        return
    folder.mkdir(parents=True, exist_ok=True)
    # The folder then counts as a copy of this mirror, which the whole run may replace later.
    if not (folder / NOTE).exists():
        write_json(folder / NOTE, {"mirror": mirror.shown, "saves": []})
    for name, content in contents.items():
        write_bytes(folder / name, content)
