"""What PAI's services have in common as queues: a job is created, listed by its token, looked at, stopped.

No request that creates a job can name it, so a lost answer may leave a job that nobody knows of. Each submission has a
token, which its jobs carry, and each request for a job an attempt of its own. Before a request is repeated, the service
is asked for jobs of the token; it may show late what it did. Where there may be several jobs, the claim on the store
(`nlu.launching.pai.claim`) decides which of them works: it is this one that is followed, the others leave by
themselves, and are stopped where they are seen.
"""

from __future__ import annotations

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from nlu.config.errors import UserError
from nlu.launching.pai.calls import OURS, Away, Failure, Fate, asked, done_once, waits_s
from nlu.launching.pai.claim import NOBODY, holder_after, holder_of
from nlu.launching.pai.command import Attempt, Program
from nlu.launching.pai.credentials import Credentials
from nlu.launching.pai.packed import Packed
from nlu.launching.pai.settings import PaiSettings
from nlu.launching.queue import Job, JobRefused, JobState, Look, Ticket
from nlu.storage.objects import ObjectStore

log = logging.getLogger(__name__)

DOUBT_S, SETTLE_S = 120.0, 5.0
"""how long after an answer was lost a second job of the same submission may still appear; how often it is looked for"""
NEW_S = 60.0
"""how long a job that was just submitted may be missing from what the service shows"""
DAY_S = 24 * 3600.0
"""how long ago a submission may be whose jobs another command looks for"""


@dataclass(frozen=True)
class Made:
    """A job that the service has."""

    id: str
    attempt: str
    """that made it"""


@dataclass
class Doubt:
    """A submission of which there may be several jobs."""

    since_s: float
    """no job of it is older, by the clock of this machine"""
    until_s: float
    """how long another may appear, by the monotonic clock"""
    kept: str | None = None
    """the id of the job that stays, once that is decided"""


@dataclass
class Doubts:
    """What is known of the submissions of this process: of all its queues, since one of them looks for all."""

    open: dict[str, Doubt] = field(default_factory=dict)
    """by token"""
    new_s: dict[str, float] = field(default_factory=dict)
    """by id: when a job was submitted"""
    settled_s: float = 0.0

    def note(self, token: str, since_s: float, kept: str | None = None) -> None:
        """Have the service asked for further jobs of a submission for a while."""
        self.open[token] = Doubt(since_s, time.monotonic() + DOUBT_S, kept)

    def note_new(self, id: str, age_s: float) -> None:
        """Note a job that was submitted so long ago, perhaps by another command."""
        if 0 <= age_s < NEW_S:
            self.new_s.setdefault(id, time.monotonic() - age_s)

    def is_new(self, id: str) -> bool:
        """Whether a job may be missing from what the service shows."""
        return time.monotonic() - self.new_s.get(id, float("-inf")) < NEW_S

    def clear(self) -> None:
        self.open.clear()
        self.new_s.clear()


class Service(ABC):
    """A service as a queue: see `nlu.launching.queue.Queue`. `store` is that of OSS_FOLDER, `code` what jobs run."""

    name: ClassVar[str]
    one: ClassVar[str] = "job"
    """what the service calls a job"""
    doubts: ClassVar[Doubts]
    hands_over_again = False
    """whether a submission may be repeated by what hands it over, which does not say so"""

    def __init__(self, settings: PaiSettings, keys: Credentials, store: ObjectStore, code: Packed, program: Program):
        self._settings, self._keys, self._store, self._code, self._program = settings, keys, store, code, program
        self._connection: Any = None
        self._tokens: dict[Job, str] = {}
        self._taken: dict[Job, Ticket] = {}
        self._attempts: dict[str, str] = {}
        """by the id of a job: what made it"""

    @abstractmethod
    def _create(self, job: Job, attempt: Attempt) -> str:
        """Have a job made, and return its id. Raises Failure."""

    @abstractmethod
    def _with_token(self, token: str, since_s: float) -> list[Made]:
        """Return the jobs of a submission that are not older, the oldest first. Raises UserError, Away."""

    @abstractmethod
    def _stop(self, id: str) -> None:
        """Stop a job. Raises Failure, also where it has ended."""

    @abstractmethod
    def _seen(self, id: str) -> Look:
        """Return what is known of a job. Raises Failure, of status 404 where there is none."""

    def _seen_together(self, ids: Sequence[str]) -> dict[str, Look]:
        """Return what is known of many jobs at once; what is left out is asked for one by one."""
        return {}

    @abstractmethod
    def _page(self, id: str) -> str:
        """Return the address where a person sees a job."""

    @abstractmethod
    def upload(self, code: Packed) -> None:
        """Have the code where the jobs look for it, once for each content. Raises UserError, Away."""

    @abstractmethod
    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """See `nlu.launching.queue.Queue`."""

    @abstractmethod
    def _connected(self) -> Any:
        """Return a client of the service's SDK."""

    @abstractmethod
    def _failure(self, error: Exception) -> Failure:
        """Return what became of the request behind an error of the SDK."""

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Have a job made for each. After an OSError the same jobs may be handed over again: none computes twice."""
        try:
            for job in jobs:
                if job not in self._taken:
                    self._taken[job] = self._created(job)
        except JobRefused:
            self._withdraw(jobs)
            raise
        tickets = [self._taken[job] for job in jobs]
        self._forget(jobs)
        return tickets

    def look(self, ids: Sequence[str]) -> dict[str, Look]:
        """Ask for many jobs at once, and one by one for those that are left out."""
        self._settle_doubts()
        found = self._seen_together(ids)
        return {id: found.get(id) or self._look_at(id) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        """Stop jobs; those that have ended, or are not known, stay as they are."""
        for id in ids:
            try:
                asked(lambda id=id: self._stop(id), f"stopping {self.one} {id}")  # type: ignore[misc]
            except Failure as failure:
                # A job that has ended is refused; one that has not is a reason to speak.
                if not self._look_at(id).state.is_final:
                    raise Away(f"{self.one} {id} cannot be stopped: {failure.sentence}") from None

    def outcome(self, id: str) -> int | None:
        """Return 0 of a job that ended well; of any other its run's folder tells more than the service does."""
        return 0 if self._look_at(id).state is JobState.DONE else None

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the tickets of jobs that an earlier submission handed over within the last day, by their tokens."""
        since_s = time.time() - DAY_S
        found = [self._one_of(job.token, since_s) if job.token else None for job in jobs]
        return [self._ticket(job, made) if made else None for job, made in zip(jobs, found, strict=True)]

    def may_have(self, token: str) -> bool:
        """Whether a call of `submit` that was not answered may have left a job of this token."""
        return token in self.doubts.open or any(job.token == token for job in self._taken)

    def worker_of(self, id: str, token: str) -> str | None:
        """Return the id of the job that has the claim of a submission, NOBODY where that was withdrawn.

        It is `id` as long as nothing says otherwise, None where the service does not show it. Raises UserError,
        OSError.
        """
        holder = holder_of(self._store, token)
        if holder is None or holder == self._attempts.get(id):
            return id
        attempts = {made.id: made.attempt for made in self._with_token(token, time.time() - DAY_S)}
        # Of a job that ended too long ago to be listed nothing else is known.
        if self._attempts.get(id, attempts.get(id, holder)) == holder:
            return id
        if holder == NOBODY:
            return NOBODY
        return next((other for other, attempt in attempts.items() if attempt == holder), None)

    def _created(self, job: Job) -> Ticket:
        token = job.token or self._tokens.setdefault(job, uuid.uuid4().hex)
        since_s = time.time()

        def create() -> Made:
            attempt = Attempt(self._store.reference.location.rstrip("/"), token, uuid.uuid4().hex)
            try:
                return Made(self._create(job, attempt), attempt.id)
            except Failure as failure:
                if failure.fate is Fate.UNKNOWN:
                    self.doubts.note(token, since_s)
                raise

        # An earlier call may have left a job before it raised an error.
        doubt = self.doubts.open.get(token)
        made = self._one_of(token, doubt.since_s) if doubt else None
        if made is None:
            made = self._made(token, since_s, create, f"job {job.number}")
        self.doubts.new_s[made.id] = time.monotonic()
        return self._ticket(job, made)

    def _made(self, token: str, since_s: float, create: Callable[[], Made], what: str) -> Made:
        try:
            made, in_doubt = done_once(create, lambda: self._one_of(token, since_s), f"submitting {what}")
        except Failure as failure:
            raise JobRefused(f"{self.name} did not take {what}: {failure.sentence}") from None
        if in_doubt:
            return self._decided(token, since_s, [made])
        if self.hands_over_again:
            self.doubts.note(token, since_s, made.id)
        return made

    def _ticket(self, job: Job, made: Made) -> Ticket:
        self._attempts[made.id] = made.attempt
        return Ticket(job, made.id, self._page(made.id))

    def _withdraw(self, jobs: Sequence[Job]) -> None:
        """Leave none of the jobs of a submission, neither those that were taken nor what may still appear of them.

        What cannot be done is said; whoever refused the submission is heard first. Raises nothing of its own.
        """
        open_tokens = []
        for job in jobs:
            token, ticket = job.token or self._tokens.get(job, ""), self._taken.get(job)
            is_left = ticket is not None and not self._tried(partial(self.cancel, [ticket.id]), token)
            if doubt := self.doubts.open.get(token):
                doubt.kept = NOBODY
            if doubt or is_left:
                open_tokens.append(token)
        for token in open_tokens:
            self._tried(partial(holder_after, self._store, token, NOBODY), token)
            if doubt := self.doubts.open.get(token):
                self._tried(partial(self._stop_shown, token, doubt), token)
        self._forget(jobs)

    def _stop_shown(self, token: str, doubt: Doubt) -> None:
        self.cancel([made.id for made in self._with_token(token, doubt.since_s)])

    def _tried(self, step: Callable[[], object], token: str) -> bool:
        """Return whether a step of a withdrawal could be done; it is said where not."""
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

    def _one_of(self, token: str, since_s: float) -> Made | None:
        """Return the job of a submission that stays, after stopping any other; None where the service shows none."""
        found = self._with_token(token, since_s)
        return self._decided(token, since_s, found) if found else None

    def _decided(self, token: str, since_s: float, found: Sequence[Made]) -> Made:
        """Return the job of a submission that stays: the one that works already, else the first that was found.

        Raises Away where the service does not show the one that works.
        """
        holder = holder_after(self._store, token, found[0].attempt)
        for wait_s in (*waits_s(), None):
            if kept := next((made for made in found if made.attempt == holder), None):
                self.doubts.note(token, since_s, kept.id)
                self._stop_all_but(kept.id, found)
                return kept
            if wait_s is None:
                break
            time.sleep(wait_s)
            found = self._with_token(token, since_s)
        raise Away(f"{self.name} made several jobs of one submission, and does not show the one that works")

    def _settle_doubts(self) -> None:
        """Stop further jobs of submissions whose answer was lost, as long as some may still appear."""
        if time.monotonic() - self.doubts.settled_s < SETTLE_S:
            return
        self.doubts.settled_s = time.monotonic()
        for token, doubt in list(self.doubts.open.items()):
            if doubt.kept is not None:
                self._stop_all_but(doubt.kept, self._with_token(token, doubt.since_s))
            if time.monotonic() > doubt.until_s:
                self.doubts.open.pop(token, None)

    def _stop_all_but(self, id: str, found: Sequence[Made]) -> None:
        for made in found:
            if made.id != id:
                log.warning("%s made a second %s of one submission (%s); it is stopped", self.name, self.one, made.id)
                self.cancel([made.id])

    def _look_at(self, id: str) -> Look:
        try:
            return asked(lambda: self._seen(id), f"{self.one} {id}")
        except Failure as failure:
            if failure.status != 404:
                raise UserError(f"{self.name} does not tell of {self.one} {id}: {failure.sentence}") from None
            if self.doubts.is_new(id):
                return Look(JobState.WAITING, reason="submitted")
            return Look(JobState.LOST, reason=f"{self.name} knows of no such {self.one}")

    @property
    def _client(self) -> Any:
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _call(self, call: Any) -> Any:
        """Call with the client, once. Raises Failure, in which no key is told."""
        try:
            return call(self._client)
        except OURS:
            raise
        except Exception as error:
            raise self._failure(error) from None
