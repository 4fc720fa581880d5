"""Jobs that an earlier command submitted into a folder: list, follow and cancel them."""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import path_text
from nlu.display.jobs import JobRow
from nlu.jobs.following import Follower, JobEnd
from nlu.jobs.queue import Finding, Job, JobState, Look, Queue, QueueContext, Ticket, open_queue
from nlu.jobs.submissions import Submissions, Submitted, submissions_below

CUT_OFF = "unknown"
"""state of a job whose command was killed before the queue answered"""


@dataclass(frozen=True)
class Listed:
    """A job that was submitted, and its present state."""

    submitted: Submitted
    folder: Path
    """the folder of the submission"""
    state: str
    node: str
    reason: str
    is_certain: bool = True
    """see `Look.is_certain`"""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in (JobState.WAITING, JobState.RUNNING)


class CombinedQueue:
    """Several queues as one, which only looks after jobs; `queues` has the queue of each job by the id of the job."""

    def __init__(self, queues: Mapping[str, Queue]):
        self._queues = queues
        self.poll_s = min((getattr(queue, "poll_s", 1.0) for queue in queues.values()), default=1.0)
        names = {queue.name for queue in queues.values()}
        self.name = names.pop() if len(names) == 1 else "queue"

    def _by_queue(self, ids: Sequence[str]) -> list[tuple[Queue, list[str]]]:
        found: dict[int, tuple[Queue, list[str]]] = {}
        for of_job in ids:
            queue = self._queues[of_job]
            found.setdefault(id(queue), (queue, []))[1].append(of_job)
        return list(found.values())

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        raise AssertionError("these queues were opened to look after jobs")

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        return {id: look for queue, own in self._by_queue(ids) for id, look in queue.look(own).items()}

    def cancel(self, ids: Sequence[str]) -> None:
        refused: list[str] = []
        for queue, own in self._by_queue(ids):
            try:
                queue.cancel(own)
            except UserError as error:
                # The other queues are asked to cancel all the same.
                refused += error.sentences
        if refused:
            raise UserError(*refused)

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        return self._queues[id].log_tail(id, lines)

    def outcome(self, id: str) -> object:
        return self._queues[id].outcome(id)

    def status(self, id: str) -> object:
        return self._queues[id].status(id)


def records_of(folder: Path) -> list[Submissions]:
    """Return the records of the submissions in a folder and below it. Raises UserError without any."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give that of a run, a grid or a search")
    if not (found := submissions_below(folder)):
        raise UserError(
            f"nothing was submitted in {folder}; give the folder of a run, a grid or a search that a launcher took"
        )
    return found


def latest(records: Sequence[Submissions]) -> list[tuple[Path, Submitted]]:
    """Return the newest submission of each job with the folder of its record, by folder and number."""
    found: dict[tuple[Path, int], Submitted] = {}
    for record in records:
        for submitted in record.read():
            # Later lines replace earlier ones of the same job.
            found[record.folder, submitted.job.number] = submitted
    return [(folder, found[folder, number]) for folder, number in sorted(found)]


def queue_of(submitted: Iterable[tuple[Path, Submitted]]) -> CombinedQueue:
    """Return the queues of these jobs as one. Each job comes with the folder of its record."""
    opened: dict[str, Queue] = {}
    queues: dict[str, Queue] = {}
    for folder, one in submitted:
        if one.ticket is not None:
            # One queue for all jobs with the same settings, so that it is asked once for all of them.
            key = f"{folder} {one.queue} {dict(one.settings)}"
            if key not in opened:
                opened[key] = open_queue(one.queue, QueueContext(one.settings, folder))
            queues[one.ticket.id] = opened[key]
    return CombinedQueue(queues)


def listed(found: Sequence[tuple[Path, Submitted]]) -> list[Listed]:
    """Return the present state of these jobs. The queue is asked only for jobs whose end is not on record."""
    unknown = [(folder, one) for folder, one in found if one.ended is None and one.ticket is not None]
    looks: Mapping[str, Look] = {}
    statuses: dict[str, object] = {}
    if unknown:
        queue = queue_of(unknown)
        try:
            looks = queue.look([one.ticket.id for _, one in unknown if one.ticket])
            statuses = {id: queue.status(id) for id, look in looks.items() if look.state.is_final}
        except OSError as error:
            raise UserError(f"{queue.name} does not answer: {error}; try again later") from error
    rows = []
    for folder, one in found:
        if one.ended is not None:
            rows.append(Listed(one, folder, one.ended, "", ""))
        elif one.ticket is None:
            rows.append(Listed(one, folder, CUT_OFF, "", "its submission was cut off"))
        else:
            look = looks[one.ticket.id]
            state = JobEnd(look, statuses[one.ticket.id]).word if look.state.is_final else str(look.state)
            rows.append(Listed(one, folder, state, look.node or "", look.reason or "", look.is_certain))
    return rows


def open_jobs(folder: Path) -> dict[int, Submitted]:
    """Return the jobs of a folder that have not ended, by number: the newest submission of each.

    A job whose submission was cut off is looked for by its token. Each queue is asked once. Raises OSError if a queue
    does not answer, UserError for a job of which only another machine knows.
    """
    record = Submissions(folder)
    recover(record, [one for one in record.read() if one.ticket is None])
    found = [one for one in latest([record]) if one[1].ended is None and one[1].ticket is not None]
    looks = queue_of(found).look([one.ticket.id for _, one in found if one.ticket is not None])
    return {
        one.job.number: one for _, one in found if one.ticket is not None and not looks[one.ticket.id].state.is_final
    }


def recover(record: Submissions, cut: Sequence[Submitted]) -> None:
    """Look for jobs whose submission was cut off, and write down their tickets, or that they were not submitted.

    Raises UserError if their queue cannot find such jobs.
    """
    # By their text, since mappings cannot be compared as keys. Each queue is asked once for all of its jobs.
    for key in dict.fromkeys(f"{one.queue} {one.settings}" for one in cut):
        own = [one for one in cut if f"{one.queue} {one.settings}" == key]
        try:
            queue = open_queue(own[0].queue, QueueContext(own[0].settings, record.folder))
            assert isinstance(queue, Finding)
        except (UserError, AssertionError) as error:
            numbers = ", ".join(str(one.job.number) for one in own)
            raise UserError(
                f"the submission of jobs {numbers} in {record.folder} was cut off before {own[0].queue} had answered, "
                "so it is not known whether it has them; look there, cancel what you find, and "
                f"python -m nlu.jobs {record.folder} --forget lets the same command submit them again"
            ) from error
        tickets = queue.find([one.job for one in own])
        record.submitted([ticket for ticket in tickets if ticket is not None])
        record.refused([one.job for one, ticket in zip(own, tickets, strict=True) if ticket is None])


def cancel_jobs(folder: Path, numbers: Collection[int]) -> None:
    """Cancel the newest job of each of these numbers that was submitted into a folder, if it has not ended.

    Raises UserError if one cannot be cancelled from here, OSError if its queue does not answer.
    """
    found = [one for one in latest([Submissions(folder)]) if one[1].job.number in numbers and one[1].ended is None]
    ids = [one.ticket.id for _, one in found if one.ticket is not None]
    queue_of(found).cancel(ids)


def _fetch(ended: Sequence[tuple[Path, Submitted]]) -> None:
    """Fetch the runs of jobs that ended while no command followed them."""
    queue = queue_of(ended)
    try:
        for _, one in ended:
            if one.ticket is not None:
                queue.outcome(one.ticket.id)
    except OSError as error:
        raise UserError(f"{queue.name} does not answer: {error}; try again later") from error


def follow(folders: Sequence[Path], progress_of: Callable[[Path], JobRow] = lambda folder: JobRow()) -> None:
    """Follow all jobs of these folders until they have ended. Runs of jobs that ended before are only fetched.

    The command that submitted the jobs can still collect them. Raises UserError if nothing was submitted there, and
    Detached if the user leaves the jobs running.
    """
    records = [record for folder in folders for record in records_of(folder)]
    rows = listed(latest(records))
    _fetch([(row.folder, row.submitted) for row in rows if not row.is_open and row.submitted.ended is None])
    has_folders = len({row.folder for row in rows}) > 1
    names = {
        row.submitted.job.token: f"{path_text(row.folder)} {name}" if has_folders else name
        for row in rows
        for name in [f"job {row.submitted.job.number}"]
    }
    for row in rows:
        if not row.is_open and row.state != JobState.DONE:
            why = f" ({row.reason})" if row.reason else ""
            log = f"; its log: {row.submitted.ticket.log}" if row.submitted.ticket and row.submitted.ticket.log else ""
            print(f"nlu: {names[row.submitted.job.token]}: {row.state}{why}{log}", file=sys.stderr)
    open_ones = [(row.folder, row.submitted) for row in rows if row.is_open]
    if not open_ones:
        return
    tickets = [one.ticket for _, one in open_ones if one.ticket is not None]
    Follower(queue_of(open_ones), tickets, names, folders[0], progress_of).run()
