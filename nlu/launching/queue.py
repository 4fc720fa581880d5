"""What every queue of jobs promises, whatever cluster stands behind it: submit, look, cancel, read the log.

A launcher hands jobs to a queue and follows them by their tickets. A job is one run in one folder; it ends by itself,
or it is lost. That is found out by looking, never by waiting for an answer that may not come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from nlu.config.errors import UserError
from nlu.config.submitted import JobLost

__all__ = ["Finding", "Job", "JobLost", "JobRefused", "JobState", "Look", "Queue", "Ticket"]


class JobState(StrEnum):
    """Where a job is. The last four are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        return self not in (JobState.WAITING, JobState.RUNNING)


class QueueFull(OSError):
    """The queue takes no more jobs before some have ended: no fault of those that it did not take."""


class JobRefused(UserError):
    """The queue did not take a job: what it said, and what to change."""


@dataclass(frozen=True)
class Job:
    """One run that is to be started elsewhere."""

    number: int
    """its number in a grid or a search, 0 of a single run"""
    folder: str
    """where its run lies: a path that the job sees, or the object store's folder that keeps it"""
    overrides: tuple[str, ...]
    """what composes it, as on the command line"""
    token: str = ""
    """a name that no other submission has: by it a queue finds a job again whose ticket was not written down"""


@dataclass(frozen=True)
class Ticket:
    """A job that a queue took."""

    job: Job
    id: str
    """by what the queue knows it"""
    log: str | None = None
    """path or address of its log"""


@dataclass(frozen=True)
class Look:
    """What a queue says of a job at one moment."""

    state: JobState
    node: str | None = None
    reason: str | None = None
    """why it waits, or why it ended"""
    is_certain: bool = True
    """False of a job that runs as far as this machine can tell, which is not the one that could tell"""


class Queue(Protocol):
    """A cluster's queue. All of it may raise OSError while the cluster does not answer: ask again."""

    name: str

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Hand over the jobs, in order. Raises JobRefused, after which none of them is in the queue."""

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        """Return what is known of these jobs, every one of them; one that is not known any more is LOST."""

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs, waiting or running; those that have ended stay as they are.

        Raises UserError, when the others have been told to, for those that cannot be cancelled from here.
        """

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        """Return the last lines of a job's log; nothing before it began."""

    def outcome(self, id: str) -> Any:
        """Return what a job that has ended returned: Hydra's JobReturn or an exit status; None where nothing is known.

        A job that raised an error has that error as the value of its JobReturn.
        """

    def status(self, id: str) -> Any:
        """Return what `outcome` would, as far as that is known without fetching the run: enough to say how it ended."""


@runtime_checkable
class Finding(Protocol):
    """A queue that finds jobs whose tickets were lost, as they are where a submission is killed in its midst."""

    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each of the jobs, by its token; None of one that never came into the queue."""
