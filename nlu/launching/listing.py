"""Jobs that were submitted into folders, found again later by another process: looked at, followed, cancelled."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.words import path_text
from nlu.launching.following import Ended, Follower
from nlu.launching.queue import Job, JobState, Look, Queue, Ticket
from nlu.launching.queues import Place, open_queue
from nlu.launching.submissions import Submissions, Submitted, submissions_below

CUT_OFF = "unknown"
"""state of a job whose submission was killed in its midst"""


@dataclass(frozen=True)
class Listed:
    """A job that was submitted, and where it is now."""

    submitted: Submitted
    folder: Path
    """where it was submitted"""
    state: str
    node: str
    reason: str
    is_certain: bool = True
    """see `Look.is_certain`"""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in (JobState.WAITING, JobState.RUNNING)


class Several:
    """The queues of several submissions as one, for looking after their jobs."""

    name = "queue"

    def __init__(self, of_ids: Mapping[str, Queue]):
        self._of_ids = of_ids
        self.poll_s = min((getattr(queue, "poll_s", 1.0) for queue in of_ids.values()), default=1.0)
        names = {queue.name for queue in of_ids.values()}
        self.name = names.pop() if len(names) == 1 else "queue"

    def _apart(self, ids: Sequence[str]) -> list[tuple[Queue, list[str]]]:
        found: dict[int, tuple[Queue, list[str]]] = {}
        for id in ids:
            queue = self._of_ids[id]
            found.setdefault(queue_key(queue), (queue, []))[1].append(id)
        return list(found.values())

    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        raise AssertionError("these queues were opened to look after jobs")

    def look(self, ids: Sequence[str]) -> Mapping[str, Look]:
        return {id: look for queue, own in self._apart(ids) for id, look in queue.look(own).items()}

    def cancel(self, ids: Sequence[str]) -> None:
        refused: list[str] = []
        for queue, own in self._apart(ids):
            try:
                queue.cancel(own)
            except UserError as error:
                refused += error.sentences
        if refused:
            raise UserError(*refused)

    def log_tail(self, id: str, lines: int = 1) -> list[str]:
        return self._of_ids[id].log_tail(id, lines)

    def outcome(self, id: str) -> Any:
        return self._of_ids[id].outcome(id)

    def status(self, id: str) -> Any:
        return self._of_ids[id].status(id)


def queue_key(queue: Queue) -> int:
    """Return what tells queues apart."""
    return id(queue)


def records_of(folder: Path) -> list[Submissions]:
    """Return the records of what was submitted in a folder and below it. Raises UserError where there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give that of a run, a grid or a search")
    if not (found := submissions_below(folder)):
        raise UserError(
            f"nothing was submitted in {folder}; give the folder of a run, a grid or a search that a launcher took"
        )
    return found


def latest(records: Sequence[Submissions]) -> list[tuple[Path, Submitted]]:
    """Return the newest submission of each job, with the folder of its record; by folder and number."""
    found: dict[tuple[Path, int], Submitted] = {}
    for record in records:
        for submitted in record.read():
            found[record.folder, submitted.job.number] = submitted
    return [(folder, found[folder, number]) for folder, number in sorted(found)]


def queue_of(submitted: Iterable[tuple[Path, Submitted]]) -> Several:
    """Return the queues of these jobs, each with the folder of its record, as one."""
    opened: dict[str, Queue] = {}
    of_ids: dict[str, Queue] = {}
    for folder, one in submitted:
        if one.ticket is not None:
            key = f"{folder} {one.queue} {dict(one.settings)}"
            if key not in opened:
                opened[key] = open_queue(one.queue, Place(one.settings, folder))
            of_ids[one.ticket.id] = opened[key]
    return Several(of_ids)


def listed(found: Sequence[tuple[Path, Submitted]]) -> list[Listed]:
    """Return where these jobs are now; the queue is asked for those alone of which nobody was told the end."""
    unknown = [(folder, one) for folder, one in found if one.ended is None and one.ticket is not None]
    looks: Mapping[str, Look] = {}
    statuses: dict[str, Any] = {}
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
            state = Ended(look, statuses[one.ticket.id]).word if look.state.is_final else str(look.state)
            rows.append(Listed(one, folder, state, look.node or "", look.reason or "", look.is_certain))
    return rows


def cancel_all(folder: Path) -> int:
    """Cancel all jobs that were submitted into a folder and have not ended; returns how many these were.

    Of another machine's jobs none is.
    """
    found = [row for row in listed(latest([Submissions(folder)])) if row.is_open and row.is_certain]
    ids = [row.submitted.ticket.id for row in found if row.submitted.ticket is not None]
    queue_of((row.folder, row.submitted) for row in found).cancel(ids)
    return len(ids)


def _fetch(ended: Sequence[tuple[Path, Submitted]]) -> None:
    """Have the runs of jobs here that ended while nobody followed them."""
    queue = queue_of(ended)
    try:
        for _, one in ended:
            if one.ticket is not None:
                queue.outcome(one.ticket.id)
    except OSError as error:
        raise UserError(f"{queue.name} does not answer: {error}; try again later") from error


def follow(folders: Sequence[Path]) -> None:
    """Follow all jobs of these folders until they have ended; of what ended before the runs are fetched alone.

    The same command still collects them. Raises UserError where nothing was submitted there, Left where the user has
    the jobs go on.
    """
    records = [record for folder in folders for record in records_of(folder)]
    rows = listed(latest(records))
    _fetch([(row.folder, row.submitted) for row in rows if not row.is_open and row.submitted.ended is None])
    several = len({row.folder for row in rows}) > 1
    names = {
        row.submitted.job.token: f"{path_text(row.folder)} {name}" if several else name
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
    Follower(queue_of(open_ones), tickets, names, folders[0]).run()
