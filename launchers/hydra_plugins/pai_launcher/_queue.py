"""`hydra/launcher=pai` as a queue: the checks before a submission, where the run of a job is kept, how it comes back.

    OSS_FOLDER/code/DIGEST.tar.gz    the archive of the code, of DLC jobs
    OSS_FOLDER/runs/NAME/NUMBER      the mirror of the run of a job, unless the command has mirror=

A job runs `python -m nlu.train OVERRIDES hydra.run.dir=... mirror=... resume=auto` in an empty folder. The mirror keeps
the run up to date. A job that is started again continues from it, and results come back through it.

A job carries the token of its submission. If the answer to a submission is lost, the launcher asks for jobs with the
token (`find`) before it submits again. If the service lists a job so late that a second one is made, the mirror
accepts only one of them.

Requests are signed with keys of the environment, and fail as a service that is away or as one that refuses.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hydra_plugins.pai_launcher._code import (
    MODULE,
    OUTPUT_OF,
    CodePackage,
    config_dirs,
    packed,
    problems_of_jobs,
    value_of,
    without_ours,
)
from hydra_plugins.pai_launcher.pai_launcher import (
    DLC,
    PREFIX,
    PaiSettings,
    missing_problems,
    mounts_of,
    setting_problems,
    settings_of,
)

from nlu.config.command_line import quoted
from nlu.config.errors import Temporary, UserError, is_temporary
from nlu.config.redaction import HIDDEN, hide, name_of
from nlu.jobs.queue import Job, JobRefused, JobState, Look, Queue, QueueContext, Ticket
from nlu.jobs.submissions import Submissions
from nlu.runs.mirror_files import bring_back, read_mirrored
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import Pointers
from nlu.storage.refusals import Pauses, Unreachable, retried

log = logging.getLogger(__name__)

ID, SECRET, TOKEN = (name_of("alibaba cloud", role) for role in ("key", "secret", "token"))
PAUSES_S = Pauses(0.5, 20.0, 6)
"""between the attempts at a request that may be repeated"""
FULL_STATUSES = (408, 429)
BUGS = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError)
"""errors that a bug of this package raises, never the service"""

T = TypeVar("T")
KEY = f"{PREFIX}.oss_folder"
RESULT = "result.json"
PROOF = "conditional-put"
"""the object that shows that the store is writable, and that it does not overwrite if it is asked not to"""


class ServiceAway(OSError, Temporary):
    """The service does not answer, or has too many requests; it may have carried the request out."""


class RequestRefused(UserError):
    """The service read a request and refuses it. `status` is that of HTTP."""

    def __init__(self, sentence: str, status: int | None = None):
        self.status = status
        super().__init__(sentence)


def absent_keys() -> list[str]:
    """Return a problem for each variable that is not set, and without which requests cannot be signed."""
    absent = [name for name in (ID, SECRET) if not os.environ.get(name)]
    return [f"{name} is not set; it signs requests to PAI; set it in the environment" for name in absent]


class Credentials:
    """The keys of the environment, which sign requests."""

    def __init__(self) -> None:
        self.id, self.secret, self.token = os.environ[ID], os.environ[SECRET], os.environ.get(TOKEN)

    def hidden(self, text: str) -> str:
        """Return a text of the service without these keys, which it may repeat."""
        for value in (self.secret, self.token, self.id):
            if value:
                text = text.replace(value, HIDDEN)
        return hide(text)

    def failure(self, what: str, message: str, code: str, status: int | None, *, is_overload: bool) -> Exception:
        """Return the error for a failed request: ServiceAway or RequestRefused, in one sentence without keys."""
        said = " ".join(self.hidden(message).split())[:500]
        if status is None or status >= 500 or status in FULL_STATUSES or is_overload:
            return ServiceAway(f"{what}: {said if status is not None else f'no answer ({said})'}")
        # Said in our words: the service's own message is about signatures, and may repeat a key.
        if status in (401, 403) and re.search("Signature|AccessKey|AccessId", f"{code} {said}"):
            return RequestRefused(f"{what}: {keys_refused(code)}", status)
        remedy = "" if status == 404 else "; correct what hydra.launcher sets"
        return RequestRefused(f"{what}: {said}{remedy}", status)


def keys_refused(said: str) -> str:
    """Return the message for unknown keys and wrong signatures."""
    return f"the service does not accept the keys of {ID} and {SECRET} ({said}); correct these variables"


def import_or_say(module: str, package: str, what: str) -> None:
    """Import a package of the extra `pai`. Raises UserError with the command that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{what} needs the package {package}, which is not installed ({error}); pip install {package}, or "
            "pip install 'nlu[pai]'"
        ) from None


def open_pai(context: QueueContext) -> PaiQueue:
    """Return the queue of a backend. Raises UserError with all that is missing or wrong."""
    settings = settings_of(context.settings)
    problems = [*missing_problems(settings), *setting_problems(settings), *absent_keys()]
    if problems:
        raise UserError(*problems)
    kind: type[PaiQueue]
    if settings.backend == DLC:
        from hydra_plugins.pai_launcher._dlc import DlcQueue as kind
    else:
        from hydra_plugins.pai_launcher._maxcompute import MaxComputeQueue as kind
    return kind(settings, Credentials(), context)


class PaiQueue(Queue):
    """Jobs of one service, each run with a mirror; results come back into the folders of the submission."""

    name: ClassVar[str]
    poll_s = 10.0
    is_elsewhere = True

    def __init__(self, settings: PaiSettings, keys: Credentials, context: QueueContext):
        self._settings, self._keys, self._context = settings, keys, context
        self._store = ObjectStore(str(settings.oss_folder), KEY)
        self._submissions = Submissions(context.folder)
        self._connection: Any = None
        self._is_uploaded = False

    @abstractmethod
    def _create(self, job: Job, arguments: Sequence[str], code: CodePackage) -> str:
        """Create a job by one request and return its id. Raises RequestRefused, ServiceAway."""

    @abstractmethod
    def _with_token(self, token: str) -> str | None:
        """Return the id of the newest job of a submission of the last day. Raises RequestRefused, ServiceAway."""

    @abstractmethod
    def _stop(self, id: str) -> None:
        """Stop a job. Raises RequestRefused, also if it has ended."""

    @abstractmethod
    def _looks(self, ids: Sequence[str]) -> dict[str, Look]:
        """See `nlu.jobs.queue.Queue.look`."""

    def _output(self, id: str, lines: int) -> list[str]:
        """Return the last lines of the output of a job, if the service shows it."""
        return []

    @abstractmethod
    def _page(self, id: str) -> str:
        """Return the address of the job in the console of the service."""

    @abstractmethod
    def _upload(self, code: CodePackage) -> None:
        """Put the code where the jobs look for it."""

    @abstractmethod
    def _connected(self) -> Any:
        """Return a client of the service's SDK."""

    @abstractmethod
    def _failure(self, what: str, error: Exception) -> Exception:
        """Return ServiceAway or RequestRefused for an error of the SDK."""

    def check(self, jobs: Sequence[Job]) -> None:
        """See `nlu.jobs.queue.Queue`."""
        settings, module = self._settings, self._context.module
        if module != MODULE and module not in OUTPUT_OF:
            raise UserError(f"{module} cannot be submitted to PAI; submit one of {', '.join((MODULE, *OUTPUT_OF))}")
        # The name of this folder in the store is drawn when jobs are submitted.
        runs = self._runs() if self._submissions.name() else None
        mirrors = {job.token: self._mirror(job, runs or "runs/NAME") for job in jobs}
        code = packed()
        problems = problems_of_jobs(jobs, mirrors, code, self._context, mounts_of(settings))
        if settings.workers > 1 and module != MODULE:
            problems.append(
                f"{PREFIX}.workers is {settings.workers}, but only {MODULE} is spread over machines; set it to 1"
            )
        problems += [
            f"job {job.number}: {mirrors[job.token]} holds a run; set resume=auto to continue it, or choose another "
            "folder"
            for job in (jobs if module == MODULE and not problems else ())
            if (runs or value_of(job.overrides, "mirror")) and self._is_taken(job, mirrors[job.token])
        ]
        if problems:
            raise UserError(*problems)

    @staticmethod
    def _is_taken(job: Job, mirror: str) -> bool:
        """Whether a mirror holds a run that the command does not continue."""
        continues = value_of(job.overrides, "resume") == "auto" or value_of(job.overrides, "trial") is not None
        return not continues and Pointers(ObjectStore(mirror, KEY)).newest() is not None

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """See `nlu.jobs.queue.Queue`. The launcher has called `check` before."""
        created: list[Ticket] = []
        try:
            code = packed()
            if not self._is_uploaded:
                # Mirrors rest on it, and it shows that the store can be written to.
                self._store.prove_conditional_put(PROOF)
                self._upload(code)
                self._is_uploaded = True
            for job in jobs:
                created.append(self._ticket(job, self._create(job, self.arguments_of(job), code)))
        except Unreachable:
            # A UserError too, but the launcher asks again.
            raise
        except UserError as error:
            try:
                self.cancel(created)
            except (UserError, OSError) as left:
                ids = ", ".join(ticket.id for ticket in created)
                log.warning("%s may still run jobs %s of this submission: %s", self.name, ids, left)
            raise JobRefused(*error.problems, summary=error.summary, remedy=error.remedy) from None
        return created

    def _ticket(self, job: Job, id: str) -> Ticket:
        return Ticket(job, id, self._page(id))

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """See `nlu.jobs.queue.Queue`."""
        found = [self._with_token(job.token) for job in jobs]
        return [self._ticket(job, id) if id else None for job, id in zip(jobs, found, strict=True)]

    def _lost_or(self, state_of: Callable[[str], Look], id: str) -> Look:
        """Return what a request for one job says; a job that is not known is LOST."""
        try:
            return state_of(id)
        except RequestRefused as refusal:
            if refusal.status != 404:
                raise
            return Look(JobState.LOST, reason=f"{self.name} has no such job")

    def look(self, tickets: Sequence[Ticket]) -> dict[str, Look]:
        """See `nlu.jobs.queue.Queue`."""
        return self._looks([ticket.id for ticket in tickets])

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Stop jobs. Those that have ended, or are not known, stay as they are."""
        problems = []
        for ticket in tickets:
            try:
                self._stop(ticket.id)
            except RequestRefused as refusal:
                # The service refuses to stop a job that has ended; any other refusal is an error.
                if not self.look([ticket])[ticket.id].state.is_final:
                    problems += refusal.problems
        if problems:
            raise UserError(*problems)

    def log_tail(self, ticket: Ticket, lines: int = 1) -> list[str]:
        """Return the last lines of the output of the job, or of the log in its mirror."""
        with suppress(UserError):
            if said := self._output(ticket.id, lines):
                return said
        if not self._has_run(ticket.job):
            return []
        try:
            content = read_mirrored(self.mirror_of(ticket.job), "log.txt")
        except (FileNotFoundError, Unreachable):
            return []
        return content.decode(errors="replace").splitlines()[-lines:]

    def outcome(self, ticket: Ticket, *, fetches: bool = True) -> int | None:
        """Fetch the run of a job, and return 0 if it has a result.

        A run without a result stays in its mirror, from which another job can continue.
        """
        job = ticket.job
        if self._has_run(job):
            try:
                if fetches:
                    bring_back(self.mirror_of(job), Path(job.folder), log.debug)
                # The result counts, not the state of the job: a job may fail after its run was complete.
                if (Path(job.folder) / RESULT).is_file():
                    return 0
            except (UserError, OSError) as error:
                log.warning("the run of job %d is not here yet: %s", job.number, error)
        return 0 if self.look([ticket])[ticket.id].state is JobState.DONE else None

    def _has_run(self, job: Job) -> bool:
        """Return whether a job leaves a run."""
        return self._context.module == MODULE and Path(job.folder).is_relative_to(self._context.folder)

    def mirror_of(self, job: Job) -> str:
        """Return the mirror of the run of a job: below mirror= of its command, or below OSS_FOLDER/runs."""
        return self._mirror(job, self._runs())

    def _mirror(self, job: Job, runs: str) -> str:
        given = value_of(job.overrides, "mirror")
        return self._below(given or f"{self._store.reference.location.rstrip('/')}/{runs}", job)

    def _below(self, root: str, job: Job) -> str:
        name = os.path.relpath(job.folder, self._context.folder)
        if name.startswith(".."):
            # A single job without a run has the working folder.
            name = str(job.number)
        return root if name == "." else f"{root.rstrip('/')}/{Path(name).as_posix()}"

    def _runs(self) -> str:
        """Return the place of the runs of this folder in the store, the same for every machine that sees the folder."""
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", self._context.folder.name)
        return f"runs/{plain}-{self._submissions.name()}"

    def arguments_of(self, job: Job) -> list[str]:
        """Return the arguments of Python in the started job: its own overrides, and those that place its run."""
        program = ["-m", self._context.module, *(f"--config-dir={folder}" for folder in config_dirs(self._context))]
        if self._context.module != MODULE:
            return [*program, *job.overrides]
        folder = self._settings.work_folder
        # In the empty folder of the job, or in a mount that all its machines share.
        run_dir = "run" if folder is None else self._below(f"{folder.rstrip('/')}/{self._runs()}", job)
        trial = [text for text in job.overrides if text.partition("=")[0].lstrip("+~") == "trial"]
        own = [quoted(f"hydra.run.dir={run_dir}"), quoted(f"mirror={self.mirror_of(job)}"), "resume=auto"]
        return [*program, *without_ours(job.overrides), *trial, *own]

    def _asked(self, what: str, call: Callable[[Any], T]) -> T:
        """Send a request that may be repeated. Raises RequestRefused, or ServiceAway after the last attempt."""
        return retried(lambda: self._once(what, call), PAUSES_S, is_temporary)

    def _once(self, what: str, call: Callable[[Any], T]) -> T:
        """Send a request with the client, once. Raises RequestRefused, ServiceAway."""
        try:
            if self._connection is None:
                self._connection = self._connected()
            return call(self._connection)
        except BUGS:
            raise
        except Exception as error:
            raise self._failure(f"{self.name}, {what}", error) from None
