"""Jobs that an earlier command submitted into a folder: list, follow and cancel them."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.sentences import path_text
from nlu.jobs.following import Follower, JobEnd
from nlu.jobs.queue import JobState, Queue, QueueContext, QueuedJob, cancel, look_at, open_queue
from nlu.jobs.submissions import Submissions, Submitted, submissions_below
from nlu.search.storage.opening import held_search

CUT_OFF = "unknown"
"""state of a job whose command was killed before the queue answered"""


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
