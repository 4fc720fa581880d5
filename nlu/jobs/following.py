"""Follow jobs from their submission to their end: a line for each event.

Jobs that an earlier command submitted into a folder are listed, followed and cancelled by its records.
"""

import contextlib
import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hydra.core.utils import JobReturn

from nlu.config.errors import UserError
from nlu.config.sentences import counted, path_text
from nlu.config.stopping import STOPPED, Stopped
from nlu.display.progress_bars import console
from nlu.jobs.queue import JobState, Look, Queue, QueueContext, QueuedJob, Ticket, cancel, look_at, open_queue
from nlu.jobs.submissions import Submissions, Submitted, submissions_below
from nlu.search.storage.open_study import held_search

AWAY_AFTER = 3
"""the number of failed questions in a row after which a message says that the queue does not answer"""

CUT_OFF = "unknown"
"""state of a job whose command was killed before the queue answered"""


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    look: Look
    outcome: object
    """what it returned: a JobReturn with a value or an error, an exit status, or None"""

    @property
    def status(self) -> int | None:
        """Its exit status; None if it left none, raised an error, or returned a value as programs of others do."""
        if self.outcome is None and self.look.state == JobState.DONE:
            return 0
        return self.outcome if isinstance(self.outcome, int) and not isinstance(self.outcome, bool) else None

    @property
    def word(self) -> str:
        """In a word or two what became of it."""
        if self.look.state == JobState.CANCELLED or (self.look.state == JobState.LOST and self.outcome is None):
            return str(self.look.state)
        if self.status in STOPPED:
            return "stopped"
        is_done = self.outcome.status.name == "COMPLETED" if isinstance(self.outcome, JobReturn) else self.status == 0
        return "done" if is_done else "failed"


@dataclass
class _Followed:
    """A job, with what is known of it."""

    job: QueuedJob
    name: str
    state: JobState | None = None
    end: JobEnd | None = None


class Follower:
    """Follows jobs. `names` has the name of each job for the user, by token; `folder` is that of the submission.

    `progress_of` returns what is to be said of a folder whose job is done.
    """

    _away: ClassVar[set[str]] = set()
    """the names of queues of which was said that they do not answer"""

    def __init__(
        self,
        jobs: Sequence[QueuedJob],
        names: Mapping[str, str],
        folder: Path,
        progress_of: Callable[[Path], str] = lambda folder: "",
    ):
        self._all = [_Followed(job, names[job.ticket.job.token]) for job in jobs]
        self._folder, self._progress_of = folder, progress_of
        self._queues = " and ".join(sorted({job.queue.name for job in jobs}))
        # The trials of a search wait side by side, each in its own thread, and the search prints their events.
        self._is_quiet = threading.current_thread() is not threading.main_thread()
        self._failures = 0

    def run(self, when_ended: Callable[[Ticket, JobEnd], None] = lambda ticket, end: None) -> dict[str, JobEnd]:
        """Return how each job ended, by token, once all have ended; `when_ended` is called for each at once.

        Ctrl-C and other signals leave the jobs running, and a line says what can be done about them.
        """
        poll_s = min((one.job.queue.poll_s for one in self._all), default=0.0)
        try:
            while True:
                self._ask(self._open(), when_ended)
                if not self._open():
                    break
                time.sleep(poll_s)
        except (Stopped, KeyboardInterrupt):
            if left := self._open():
                _say(left_sentence(len(left), self._folder))
            raise
        return {one.job.ticket.job.token: one.end for one in self._all if one.end}

    def _open(self) -> list[_Followed]:
        return [one for one in self._all if one.end is None]

    def _ask(self, left: Sequence[_Followed], when_ended: Callable[[Ticket, JobEnd], None]) -> None:
        """Ask for jobs, and see what is new. A queue that does not answer, or not for one of them, is asked again."""
        failure, looks = None, dict[str, Look]()
        try:
            looks = look_at(one.job for one in left)
        except OSError as error:
            failure = error
        for one in left if looks else ():
            try:
                self._see(one, looks[one.job.ticket.job.token], when_ended)
            except OSError as error:
                failure = error
        self._failures = self._failures + 1 if failure else 0
        if failure is None:
            self._away.discard(self._queues)
        elif self._failures == AWAY_AFTER and self._queues not in self._away:
            # Of the threads of a search only one says so.
            self._away.add(self._queues)
            _say(f"nlu: {self._queues} does not answer ({failure}); nlu keeps asking for its jobs")

    def _see(self, one: _Followed, look: Look, when_ended: Callable[[Ticket, JobEnd], None]) -> None:
        before, one.state = one.state, look.state
        if look.state.is_final:
            # Fetched before the end is shown: a job whose result cannot be read yet is asked for again.
            one.end = JobEnd(look, one.job.queue.outcome(one.job.ticket))
            when_ended(one.job.ticket, one.end)
            if not self._is_quiet:
                _say(self._end_line(one, one.end), style=None if one.end.word == "done" else "red")
        elif not self._is_quiet and before != look.state:
            where, why = f" on {look.node}" if look.node else "", f" ({look.reason})" if look.reason else ""
            _say(f"{one.name}: {look.state}{where}{why}, {one.job.queue.name} {one.job.ticket.id}")

    def _end_line(self, one: _Followed, end: JobEnd) -> str:
        ticket, line = one.job.ticket, f"{one.name}: {end.word}"
        log = f"; its log: {ticket.log}" if ticket.log else ""
        if end.word == "done":
            # Jobs of other commands, such as nlu.preprocess, leave only a log.
            said = self._progress_of(Path(ticket.job.folder))
            return f"{line}, {said}" if said else f"{line}{log}"
        said = end.look.reason or ""
        if not said and end.look.state != JobState.CANCELLED:
            # A line for people is not worth an error.
            with contextlib.suppress(OSError):
                said = " ".join(one.job.queue.log_tail(ticket))
        return f"{line}{f': {said}' if said else ''}{log}"


def _say(text: str, style: str | None = None) -> None:
    console().print(text, style=style, soft_wrap=True)


def left_sentence(count: int, folder: Path) -> str:
    """Return what the user can do about jobs for which no command waits."""
    shown = shlex.quote(path_text(folder))
    verb = "continues" if count == 1 else "continue"
    return (
        f"{counted(count, 'job')} {verb}; python -m nlu.report --follow {shown} follows, "
        f"python -m nlu.jobs {shown} --cancel cancels, and the same command collects"
    )


@dataclass(frozen=True)
class Listed:
    """A job that was submitted, and its present state."""

    submitted: Submitted
    folder: Path
    """the folder of the submission"""
    state: str
    node: str = ""
    reason: str = ""
    is_certain: bool = True
    """see `Look.is_certain`"""
    end: JobEnd | None = None
    """how it ended, if the queue was asked"""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in (JobState.WAITING, JobState.RUNNING)


@contextmanager
def answered() -> Iterator[None]:
    """Raise UserError if a queue does not answer within the block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"the queue of these jobs does not answer: {error}; try again later") from error


def records_of(folder: Path) -> list[Submissions]:
    """Return the records of the submissions in a folder and below it. Raises UserError without any."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give that of a run, a grid or a search")
    if not (found := submissions_below(folder)):
        if held_search(folder) is not None:
            remedy = f"its trials run in the search itself, which python -m nlu.jobs {folder} --stop ends for good"
        else:
            remedy = "give the folder of a run, a grid or a search that a launcher took"
        raise UserError(f"nothing was submitted in {folder}; {remedy}")
    return found


def latest(records: Sequence[Submissions]) -> list[tuple[Path, Submitted]]:
    """Return the newest submission of each job with the folder of its record, by folder and number."""
    found: dict[tuple[Path, int], Submitted] = {}
    for record in records:
        for submitted in record.read():
            # Later lines replace earlier ones of the same job.
            found[record.folder, submitted.job.number] = submitted
    return [(folder, found[folder, number]) for folder, number in sorted(found)]


def queued(found: Iterable[tuple[Path, Submitted]]) -> list[QueuedJob]:
    """Return those of these jobs that have a ticket, with their queues. Each comes with the folder of its record."""
    opened: dict[str, Queue] = {}
    jobs = []
    for folder, one in found:
        # One queue for all jobs with the same settings, so that it is asked once for all of them.
        key = f"{folder} {one.queue} {dict(one.settings)}"
        if one.ticket is not None:
            if key not in opened:
                opened[key] = open_queue(one.queue, QueueContext(one.settings, folder))
            jobs.append(QueuedJob(opened[key], one.ticket))
    return jobs


def listed(found: Sequence[tuple[Path, Submitted]]) -> list[Listed]:
    """Return the present state of these jobs. The queue is asked only for jobs whose end is not on record.

    Raises OSError if one does not answer.
    """
    unknown = {job.ticket.job.token: job for job in queued(one for one in found if one[1].ended is None)}
    looks = look_at(unknown.values())
    ends = {
        token: JobEnd(look, unknown[token].queue.outcome(unknown[token].ticket, fetches=False))
        for token, look in looks.items()
        if look.state.is_final
    }
    rows = []
    for folder, one in found:
        if one.ended is not None:
            rows.append(Listed(one, folder, one.ended))
        elif one.ticket is None:
            rows.append(Listed(one, folder, CUT_OFF, reason="its submission was cut off"))
        else:
            look = looks[one.job.token]
            end = ends.get(one.job.token)
            state = end.word if end else str(look.state)
            rows.append(Listed(one, folder, state, look.node or "", look.reason or "", look.is_certain, end))
    return rows


def open_jobs(folder: Path) -> dict[int, Listed]:
    """Return the jobs of a folder that have not ended, by number: the newest submission of each.

    A job whose submission was cut off is looked for by its token. Each queue is asked once. Raises OSError if a queue
    does not answer, UserError for a job of which only another machine knows.
    """
    record = Submissions(folder)
    recover(record)
    return {row.submitted.job.number: row for row in listed(latest([record])) if row.is_open}


def recover(record: Submissions) -> None:
    """Look for jobs whose submission was cut off, and write down their tickets, or that they were not submitted.

    Raises OSError if their queue does not answer, UserError if it cannot be asked.
    """
    cut = [one for one in record.read() if one.ticket is None]
    # By their text, since mappings cannot be compared as keys. Each queue is asked once for all of its jobs.
    for key in dict.fromkeys(f"{one.queue} {one.settings}" for one in cut):
        own = [one for one in cut if f"{one.queue} {one.settings}" == key]
        try:
            tickets = open_queue(own[0].queue, QueueContext(own[0].settings, record.folder)).find(
                [one.job for one in own]
            )
        except UserError as error:
            numbers = ", ".join(str(one.job.number) for one in own)
            raise UserError(
                f"the submission of jobs {numbers} in {record.folder} was cut off before {own[0].queue} had answered, "
                f"and it is not known whether it has them: {error}; look there, cancel what you find, and "
                f"python -m nlu.jobs {record.folder} --forget lets the same command submit them again"
            ) from error
        record.submitted([ticket for ticket in tickets if ticket is not None])
        record.refused([one.job for one, ticket in zip(own, tickets, strict=True) if ticket is None])


def cancel_jobs(folder: Path, numbers: Collection[int]) -> None:
    """Cancel the newest job of each of these numbers that was submitted into a folder, if it has not ended.

    Raises UserError if one cannot be cancelled from here, OSError if its queue does not answer.
    """
    found = latest([Submissions(folder)])
    cancel(queued(one for one in found if one[1].job.number in numbers and one[1].ended is None))


def follow(folders: Sequence[Path], progress_of: Callable[[Path], str] = lambda folder: "") -> None:
    """Follow all jobs of these folders until they have ended. Runs of jobs that ended before are only fetched.

    The command that submitted the jobs can still collect them. Raises UserError if nothing was submitted there.
    """
    with answered():
        rows = listed(latest([record for folder in folders for record in records_of(folder)]))
        ended = [row for row in rows if not row.is_open]
        for job in queued((row.folder, row.submitted) for row in ended if row.submitted.ended is None):
            job.queue.outcome(job.ticket)
    has_folders = len({row.folder for row in rows}) > 1
    names = {
        row.submitted.job.token: f"{path_text(row.folder)} {name}" if has_folders else name
        for row in rows
        for name in [f"job {row.submitted.job.number}"]
    }
    for row in ended:
        if row.state != JobState.DONE:
            why = f" ({row.reason})" if row.reason else ""
            log = f"; its log: {row.submitted.ticket.log}" if row.submitted.ticket and row.submitted.ticket.log else ""
            print(f"nlu: {names[row.submitted.job.token]}: {row.state}{why}{log}", file=sys.stderr)
    if left := queued((row.folder, row.submitted) for row in rows if row.is_open):
        Follower(left, names, folders[0], progress_of).run()
