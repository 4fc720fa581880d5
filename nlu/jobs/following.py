"""Follow jobs from their submission to their end: on a terminal with a live table, elsewhere with a line an event."""

import contextlib
import math
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import ClassVar

from hydra.core.utils import JobReturn

from nlu.config.errors import UserError
from nlu.config.stopping import STOPPED, Stopped
from nlu.config.words import counted, path_text
from nlu.display.jobs import JobRow, JobsBoard
from nlu.jobs.queue import JobState, Look, QueuedJob, Ticket, cancel, look_at

READ_RUNS_S = 2.0
"""how often the live table reads the tables of running jobs again"""
LOOK_S = 0.5
"""the longest time before Ctrl-C is answered"""
AWAY_AFTER = 3
"""the number of failed questions in a row after which a message says that the queue does not answer"""


class Detached(Exception):
    """The user leaves the jobs running and does not wait for them."""


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


class Follower:
    """Follows jobs. `names` has the name of each job for the user, by token; `folder` is that of the submission."""

    _away: ClassVar[set[str]] = set()
    """the names of queues of which was said that they do not answer"""

    def __init__(
        self,
        jobs: Sequence[QueuedJob],
        names: Mapping[str, str],
        folder: Path,
        progress_of: Callable[[Path], JobRow] = lambda folder: JobRow(),
    ):
        self._jobs, self._names, self._folder = list(jobs), names, folder
        self._queue_name = " and ".join(sorted({job.queue.name for job in jobs}))
        self._progress_of = progress_of
        # The trials of a search wait side by side, each in its own thread, and the search prints their events.
        self._is_quiet = threading.current_thread() is not threading.main_thread()
        self._shown: dict[str, Look] = {}
        self._ended: dict[str, JobEnd] = {}
        self._interrupts = self._failures = 0
        self._rows: dict[str, JobRow] = {}
        self._read_s = 0.0

    def _say(self, text: str) -> None:
        if self._is_quiet:
            print(f"nlu: {text}", file=sys.stderr)
        else:
            self._board.say(text)

    def run(self, when_ended: Callable[[Ticket, JobEnd], None] = lambda ticket, end: None) -> dict[str, JobEnd]:
        """Return how each job ended, by token, once all have ended; `when_ended` is called for each at once.

        Raises Detached if the user presses Ctrl-C and leaves the jobs running, which is the only choice without a
        terminal. Raises Stopped, which leaves them running too, on another signal.
        """
        try:
            return self._run(when_ended)
        except Stopped:
            if left := self._open_jobs():
                self._say(left_sentence(len(left), self._folder))
            raise

    def _open_jobs(self) -> list[QueuedJob]:
        return [job for job in self._jobs if job.ticket.job.token not in self._ended]

    def _run(self, when_ended: Callable[[Ticket, JobEnd], None]) -> dict[str, JobEnd]:
        poll_s = min((job.queue.poll_s for job in self._jobs), default=0.0)
        asked_s = -math.inf
        with contextlib.ExitStack() as opened:
            if not self._is_quiet:
                self._board = opened.enter_context(JobsBoard(len(self._jobs)))
                opened.enter_context(self._counting_interrupts())
            while left := self._open_jobs():
                if time.monotonic() - asked_s >= poll_s:
                    self._ask(left, when_ended)
                    asked_s = time.monotonic()
                    continue
                self._draw()
                if self._interrupts:
                    self._answer_interrupt()
                    asked_s = -math.inf
                time.sleep(min(poll_s, LOOK_S))
        return self._ended

    def _ask(self, jobs: Sequence[QueuedJob], when_ended: Callable[[Ticket, JobEnd], None]) -> None:
        """Ask for jobs, and see what is new. A queue that does not answer, or not for one of them, is asked again."""
        failure, looks = None, dict[str, Look]()
        try:
            looks = look_at(jobs)
        except OSError as error:
            failure = error
        for job in jobs if looks else ():
            try:
                self._see(job, looks[job.ticket.job.token], when_ended)
            except OSError as error:
                failure = error
        if failure is None:
            self._failures = 0
            self._away.discard(self._queue_name)
            return
        self._failures += 1
        # Of the threads of a search only one says so.
        if self._failures == AWAY_AFTER and self._queue_name not in self._away:
            self._away.add(self._queue_name)
            self._say(f"{self._queue_name} does not answer ({failure}); nlu keeps asking for its jobs")

    def _see(self, job: QueuedJob, look: Look, when_ended: Callable[[Ticket, JobEnd], None]) -> None:
        ticket, token = job.ticket, job.ticket.job.token
        before = self._shown.get(token)
        if look.state.is_final:
            # Fetched before the end is shown: a job whose result cannot be read yet is asked for again.
            end = JobEnd(look, job.queue.outcome(ticket))
            self._shown[token], self._ended[token] = look, end
            when_ended(ticket, end)
            if not self._is_quiet:
                self._board.say(self._end_line(job, end), style=None if end.word == "done" else "red")
            return
        self._shown[token] = look
        if not self._is_quiet and (before is None or before.state != look.state):
            self._board.event(self._state_line(job, look))

    def _last_line(self, job: QueuedJob) -> str:
        # A line for the table is not worth an error.
        with contextlib.suppress(OSError):
            return " ".join(job.queue.log_tail(job.ticket))
        return ""

    def _state_line(self, job: QueuedJob, look: Look) -> str:
        where = f" on {look.node}" if look.node else ""
        why = f" ({look.reason})" if look.reason else ""
        return f"{self._names[job.ticket.job.token]}: {look.state}{where}{why}, {job.queue.name} {job.ticket.id}"

    def _end_line(self, job: QueuedJob, end: JobEnd) -> str:
        ticket = job.ticket
        line = f"{self._names[ticket.job.token]}: {end.word}"
        row = self._progress_of(Path(ticket.job.folder))
        if end.word == "done":
            # Jobs of other commands, such as nlu.preprocess, leave only a log.
            log = f"; its log: {ticket.log}" if ticket.log else ""
            # The end of a stage, whose last line says how to continue (`trainer.stop_after`).
            if row.is_unfinished:
                return f"{line}, {row.last_line}{log}"
            return f"{line}, best {row.best}" if row.best else f"{line}{log}"
        is_cancelled = end.look.state == JobState.CANCELLED
        said = end.look.reason or ("" if is_cancelled else self._last_line(job))
        return f"{line}{f': {said}' if said else ''}{f'; its log: {ticket.log}' if ticket.log else ''}"

    def _draw(self) -> None:
        if self._is_quiet or not self._board.is_live:
            return
        if time.monotonic() - self._read_s > READ_RUNS_S:
            for job in self._open_jobs():
                token, folder = job.ticket.job.token, Path(job.ticket.job.folder)
                if token in self._shown and self._shown[token].state == JobState.RUNNING:
                    row = self._progress_of(folder)
                    self._rows[token] = replace(row, last_line=row.last_line or self._last_line(job))
            self._read_s = time.monotonic()
        self._board.draw([self._row(job.ticket) for job in self._jobs])

    def _row(self, ticket: Ticket) -> JobRow:
        token = ticket.job.token
        end, look = self._ended.get(token), self._shown.get(token)
        row = self._rows.get(token) or JobRow()
        return replace(
            row,
            name=self._names[token],
            state=end.word if end else str(look.state) if look else "submitted",
            node=(look.node if look else None) or "",
            last_line=row.last_line or (look.reason if look else None) or "",
        )

    @contextlib.contextmanager
    def _counting_interrupts(self) -> Iterator[None]:
        """Count Ctrl-C, to ask what it means between two looks. The second one while a question is open ends."""

        def count(number: int, frame: FrameType | None) -> None:
            # Only counted: a question within a handler could interrupt a write of the table.
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _answer_interrupt(self) -> None:
        left = self._open_jobs()
        has = "has" if len(left) == 1 else "have"
        answer = self._board.choose(
            f"{counted(len(left), 'job')} {has} not ended", {"c": "cancel them", "l": "leave them", "g": "go on"}
        )
        if answer == "g":
            self._interrupts = 0
        elif answer == "c":
            self._board.say(f"cancelling {counted(len(left), 'job')}")
            try:
                # The next Ctrl-C ends this command at once.
                cancel(left)
            except (OSError, UserError) as error:
                self._board.say(f"{error}; jobs may continue; Ctrl-C asks again")
                self._interrupts = 0
        else:
            self._board.say(left_sentence(len(left), self._folder))
            raise Detached


def left_sentence(count: int, folder: Path) -> str:
    """Return what the user can do about jobs for which no command waits."""
    shown = shlex.quote(path_text(folder))
    verb = "continues" if count == 1 else "continue"
    return (
        f"{counted(count, 'job')} {verb}; python -m nlu.report --follow {shown} follows, "
        f"python -m nlu.jobs {shown} --cancel cancels, and the same command collects"
    )
