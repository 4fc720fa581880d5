"""What the services of PAI have in common as queues: a job is created, listed by its token, looked at and stopped.

The request that creates a job cannot name the job. If the answer is lost, a job may exist whose id is not known. So
each submission has a token and each request an attempt id, and the job carries both. Before a request is repeated, the
service is asked for jobs with the token; it may list a new job late. If several jobs of one submission may exist, the
claim on the store (`_claim`) decides which of them works. The launcher follows that job. The others end by themselves,
and are stopped when they are seen.
"""

import logging
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from nlu.config.errors import UserError
from nlu.launching.queue import Job, JobRefused, JobState, Look, Ticket
from nlu.storage.objects import ObjectStore

from ._claim import NO_ATTEMPT, holder_after, holder_of
from ._code import CodePackage
from ._command import Attempt, Program
from ._requests import (
    KEYS_REFUSED,
    OURS,
    WAITS_S,
    Credentials,
    Fate,
    RequestFailure,
    ServiceUnavailable,
    asked,
    done_once,
)
from ._settings import PREFIX, PaiSettings

log = logging.getLogger(__name__)

DOUBT_S, SETTLE_S = 120.0, 5.0
"""how long after a lost answer a second job of the same submission may still appear; how often it is looked for"""
NEW_S = 60.0
"""how late the service may list a job that was just submitted"""
DAY_S = 24 * 3600.0
"""the age of the oldest submission whose jobs another command looks for"""
FULL_STATUSES = (408, 429)


@dataclass(frozen=True)
class Created:
    """A job that the service has."""

    id: str
    attempt: str
    """the attempt that created it"""


@dataclass
class AmbiguousSubmission:
    """A submission that may have several jobs."""

    since_s: float
    """its jobs are not older than this, by the clock of this machine"""
    until_s: float
    """until when another job may appear, by the monotonic clock"""
    kept: str | None = None
    """the id of the job that stays, once that is decided"""


@dataclass
class AmbiguousSubmissions:
    """What this process knows of its submissions. All its queues share it, since one of them asks for all."""

    open: dict[str, AmbiguousSubmission] = field(default_factory=dict)
    """by token"""
    new_s: dict[str, float] = field(default_factory=dict)
    """when each job was submitted, by id"""
    settled_s: float = 0.0

    def note(self, token: str, since_s: float, kept: str | None = None) -> None:
        """Look for further jobs of a submission for a while."""
        self.open[token] = AmbiguousSubmission(since_s, time.monotonic() + DOUBT_S, kept)

    def note_new(self, id: str, age_s: float) -> None:
        """Note the age of a job, which another command may have submitted."""
        if 0 <= age_s < NEW_S:
            self.new_s.setdefault(id, time.monotonic() - age_s)

    def is_new(self, id: str) -> bool:
        """Whether the service may not show a job yet."""
        return time.monotonic() - self.new_s.get(id, float("-inf")) < NEW_S

    def clear(self) -> None:
        self.open.clear()
        self.new_s.clear()


class Service(ABC):
    """A service as a `nlu.launching.queue.Queue`. `store` is that of OSS_FOLDER, `code` what the jobs run."""

    name: ClassVar[str]
    one: ClassVar[str] = "job"
    """the service's word for a job"""
    ambiguous: ClassVar[AmbiguousSubmissions]
    client_repeats = False
    """whether the client may repeat a submission by itself, without saying so"""

    def __init__(
        self, settings: PaiSettings, keys: Credentials, store: ObjectStore, code: CodePackage, program: Program
    ):
        self._settings, self._keys, self._store, self._code, self._program = settings, keys, store, code, program
        self._connection: Any = None
        self._tokens: dict[Job, str] = {}
        self._taken: dict[Job, Ticket] = {}
        self._attempts: dict[str, str] = {}
        """the attempt that created each job, by the id of the job"""

    @abstractmethod
    def _create(self, job: Job, attempt: Attempt) -> str:
        """Create a job and return its id. Raises RequestFailure."""

    @abstractmethod
    def _with_token(self, token: str, since_s: float) -> list[Created]:
        """Return the jobs of a submission that are not older, oldest first. Raises UserError, ServiceUnavailable."""

    @abstractmethod
    def _stop(self, id: str) -> None:
        """Stop a job. Raises RequestFailure, also if it has ended."""

    @abstractmethod
    def _state_of(self, id: str) -> Look:
        """Return what is known of a job. Raises RequestFailure, with status 404 for an unknown job."""

    def _states_of(self, ids: Sequence[str]) -> dict[str, Look]:
        """Return what one request tells of many jobs. The service is asked one by one for jobs that are left out."""
        return {}

    @abstractmethod
    def _page(self, id: str) -> str:
        """Return the address of the job in the console of the service."""

    @abstractmethod
    def upload(self, code: CodePackage) -> None:
        """Put the code where the jobs look for it. Raises UserError, ServiceUnavailable."""

    @abstractmethod
    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """See `nlu.launching.queue.Queue`."""

    @abstractmethod
    def _connected(self) -> Any:
        """Return a client of the service's SDK."""

    @abstractmethod
    def _said(self, error: Exception) -> tuple[str, str]:
        """Return the code and the message in an error of the SDK."""

    @abstractmethod
    def _means_overload(self, code: str) -> bool:
        """Whether a code says that the service has too many requests."""

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Create a job for each. After an OSError the same call may be repeated: no job computes twice."""
        try:
            for job in jobs:
                if job not in self._taken:
                    # Kept job by job: after an error in the middle, the same call continues with the rest.
                    self._taken[job] = self._submitted(job)
        except JobRefused:
            self._withdraw(jobs)
            raise
        tickets = [self._taken[job] for job in jobs]
        self._forget(jobs)
        return tickets

    def look(self, ids: Sequence[str]) -> dict[str, Look]:
        self._stop_duplicates()
        found = self._states_of(ids)
        return {id: found.get(id) or self._look_at(id) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        """Stop jobs. Those that have ended, or are not known, stay as they are."""
        for id in ids:
            try:
                asked(partial(self._stop, id), f"stopping {self.one} {id}")
            except RequestFailure as failure:
                # The service refuses to stop a job that has ended; any other refusal is an error.
                if not self._look_at(id).state.is_final:
                    raise ServiceUnavailable(f"{self.one} {id} cannot be stopped: {failure.sentence}") from None

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the tickets of jobs that were submitted within the last day, by their tokens."""
        since_s = time.time() - DAY_S
        found = [self._one_of(job.token, since_s) if job.token else None for job in jobs]
        return [self._ticket(job, created) if created else None for job, created in zip(jobs, found, strict=True)]

    def may_have(self, token: str) -> bool:
        """Whether a call of `submit` that got no answer may have left a job of this token."""
        return token in self.ambiguous.open or any(job.token == token for job in self._taken)

    def worker_of(self, id: str, token: str) -> str | None:
        """Return the id of the job that has the claim of a submission, or NO_ATTEMPT if that was withdrawn.

        This is `id` unless the store says otherwise, and None if the service does not show the job. Raises UserError,
        OSError.
        """
        holder = holder_of(self._store, token)
        if holder is None or holder == self._attempts.get(id):
            return id
        attempts = {created.id: created.attempt for created in self._with_token(token, time.time() - DAY_S)}
        # A job that ended long ago is no longer listed; then it is taken for the holder.
        if self._attempts.get(id, attempts.get(id, holder)) == holder:
            return id
        if holder == NO_ATTEMPT:
            return NO_ATTEMPT
        return next((other for other, attempt in attempts.items() if attempt == holder), None)

    def _submitted(self, job: Job) -> Ticket:
        token = job.token or self._tokens.setdefault(job, uuid.uuid4().hex)
        since_s = time.time()

        def create() -> Created:
            attempt = Attempt(self._store.reference.location.rstrip("/"), token, uuid.uuid4().hex)
            try:
                return Created(self._create(job, attempt), attempt.id)
            except RequestFailure as failure:
                # Noted at once: if this process is stopped during the pauses, the next call looks for the job.
                if failure.fate is Fate.UNKNOWN:
                    self.ambiguous.note(token, since_s)
                raise

        # An earlier call may have created a job before it raised an error.
        earlier = self.ambiguous.open.get(token)
        created = self._one_of(token, earlier.since_s) if earlier else None
        if created is None:
            created = self._created(token, since_s, create, f"job {job.number}")
        self.ambiguous.new_s[created.id] = time.monotonic()
        return self._ticket(job, created)

    def _created(self, token: str, since_s: float, create: Callable[[], Created], what: str) -> Created:
        try:
            created, in_doubt = done_once(create, lambda: self._one_of(token, since_s), f"submitting {what}")
        except RequestFailure as failure:
            raise JobRefused(f"{self.name} did not take {what}: {failure.sentence}") from None
        if in_doubt:
            return self._decided(token, since_s, [created])
        if self.client_repeats:
            self.ambiguous.note(token, since_s, created.id)
        return created

    def _ticket(self, job: Job, created: Created) -> Ticket:
        self._attempts[created.id] = created.attempt
        return Ticket(job, created.id, self._page(created.id))

    def _withdraw(self, jobs: Sequence[Job]) -> None:
        """Stop the jobs of a submission that was refused, also those that may still appear.

        The caller reports the refusal, so a step that fails only prints a warning.
        """
        open_tokens = []
        for job in jobs:
            token, ticket = job.token or self._tokens.get(job, ""), self._taken.get(job)
            is_left = ticket is not None and not self._tried(partial(self.cancel, [ticket.id]), token)
            if ambiguous := self.ambiguous.open.get(token):
                # No job stays, so all that appear later are stopped.
                ambiguous.kept = NO_ATTEMPT
            if ambiguous or is_left:
                open_tokens.append(token)
        for token in open_tokens:
            # The withdrawal is claimed before the jobs are listed: a job that appears later finds the claim and ends by
            # itself.
            self._tried(partial(holder_after, self._store, token, NO_ATTEMPT), token)
            if ambiguous := self.ambiguous.open.get(token):
                self._tried(partial(self._stop_listed, token, ambiguous), token)
        self._forget(jobs)

    def _stop_listed(self, token: str, ambiguous: AmbiguousSubmission) -> None:
        self.cancel([created.id for created in self._with_token(token, ambiguous.since_s)])

    def _tried(self, step: Callable[[], object], token: str) -> bool:
        """Take a step of a withdrawal and return whether it succeeded."""
        try:
            step()
        except (UserError, OSError) as error:
            log.warning(
                "%s may still have a %s of submission %s, which was refused: %s", self.name, self.one, token, error
            )
            return False
        return True

    def _forget(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._tokens.pop(job, None)
            self._taken.pop(job, None)

    def _one_of(self, token: str, since_s: float) -> Created | None:
        """Return the job of a submission that stays, and stop the others; None if the service shows none."""
        found = self._with_token(token, since_s)
        return self._decided(token, since_s, found) if found else None

    def _decided(self, token: str, since_s: float, found: Sequence[Created]) -> Created:
        """Return the job of a submission that stays: the one that works already, otherwise the first in `found`.

        Raises ServiceUnavailable if the service does not show the one that works.
        """
        # The store decides and not this list: a job that is not listed yet may have the claim and compute.
        holder = holder_after(self._store, token, found[0].attempt)
        # The claimed job may be listed later than the others.
        for wait_s in (*WAITS_S, None):
            if kept := next((created for created in found if created.attempt == holder), None):
                self.ambiguous.note(token, since_s, kept.id)
                self._stop_all_but(kept.id, found)
                return kept
            if wait_s is not None:
                time.sleep(wait_s)
                found = self._with_token(token, since_s)
        raise ServiceUnavailable(
            f"{self.name} made several jobs of one submission, and does not show the one that works"
        )

    def _stop_duplicates(self) -> None:
        """Stop further jobs of submissions whose answer was lost, as long as some may still appear."""
        if time.monotonic() - self.ambiguous.settled_s < SETTLE_S:
            return
        self.ambiguous.settled_s = time.monotonic()
        for token, ambiguous in list(self.ambiguous.open.items()):
            if ambiguous.kept is not None:
                self._stop_all_but(ambiguous.kept, self._with_token(token, ambiguous.since_s))
            if time.monotonic() > ambiguous.until_s:
                self.ambiguous.open.pop(token, None)

    def _stop_all_but(self, id: str, found: Sequence[Created]) -> None:
        for created in found:
            if created.id != id:
                log.warning(
                    "%s made a second %s of one submission (%s); it is stopped", self.name, self.one, created.id
                )
                self.cancel([created.id])

    def _look_at(self, id: str) -> Look:
        try:
            return asked(lambda: self._state_of(id), f"{self.one} {id}")
        except RequestFailure as failure:
            if failure.status != 404:
                raise UserError(f"{self.name} does not show {self.one} {id}: {failure.sentence}") from None
            if self.ambiguous.is_new(id):
                return Look(JobState.WAITING, reason="submitted")
            return Look(JobState.LOST, reason=f"{self.name} has no such {self.one}")

    @property
    def _client(self) -> Any:
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _call(self, call: Callable[[Any], Any]) -> Any:
        """Send a request with the client, once. Raises RequestFailure, whose sentence holds no key."""
        try:
            return call(self._client)
        except OURS:
            raise
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> RequestFailure:
        """Return what became of the request behind an error of the SDK."""
        status = getattr(error, "status_code", None)
        code, message = self._said(error)
        said = " ".join(self._keys.hidden(message).split())[:500]
        if not isinstance(status, int):
            return RequestFailure(Fate.UNKNOWN, f"no answer ({said})")
        if status in FULL_STATUSES or self._means_overload(code):
            return RequestFailure(Fate.NOT_DONE, said, status)
        # The request may have been carried out before the error.
        if status >= 500:
            return RequestFailure(Fate.UNKNOWN, said, status)
        # Said in our words: the service's own message is about signatures, and may repeat a key.
        if status in (401, 403) and re.search("Signature|AccessKey|AccessId", f"{code} {said}"):
            return RequestFailure(Fate.REFUSED, f"{KEYS_REFUSED} ({code})", status)
        remedy = "" if status == 404 else f"; correct what {PREFIX} sets"
        return RequestFailure(Fate.REFUSED, f"{said}{remedy}", status)
