"""Follow jobs from their submission to their end: on a terminal with a live table, elsewhere with a line an event."""

import contextlib
import math
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass
class _Followed:
    """A job, with what is known of it."""

    job: QueuedJob
    name: str
    look: Look | None = None
    end: JobEnd | None = None
    row: JobRow = field(default_factory=JobRow)

    @property
    def folder(self) -> Path:
        return Path(self.job.ticket.job.folder)

    def last_line(self) -> str:
        """Return the last line of its log; a line for people is not worth an error."""
        with contextlib.suppress(OSError):
            return " ".join(self.job.queue.log_tail(self.job.ticket))
        return ""

    def shown(self) -> JobRow:
        """Return its row of the live table."""
        state = self.end.word if self.end else str(self.look.state) if self.look else "submitted"
        node, reason = (self.look.node or "", self.look.reason or "") if self.look else ("", "")
        return replace(self.row, name=self.name, state=state, node=node, last_line=self.row.last_line or reason)


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
        self._all = [_Followed(job, names[job.ticket.job.token]) for job in jobs]
        self._folder, self._progress_of = folder, progress_of
        self._queues = " and ".join(sorted({job.queue.name for job in jobs}))
        # The trials of a search wait side by side, each in its own thread, and the search prints their events.
        self._is_quiet = threading.current_thread() is not threading.main_thread()
        self._interrupts = self._failures = 0
        self._read_s = 0.0

    def run(self, when_ended: Callable[[Ticket, JobEnd], None] = lambda ticket, end: None) -> dict[str, JobEnd]:
        """Return how each job ended, by token, once all have ended; `when_ended` is called for each at once.

        Raises Detached if the user presses Ctrl-C and leaves the jobs running, which is the only choice without a
        terminal. Raises Stopped, which leaves them running too, on another signal.
        """
        poll_s = min((one.job.queue.poll_s for one in self._all), default=0.0)
        asked_s = -math.inf
        with contextlib.ExitStack() as opened:
            self._board = JobsBoard(len(self._all))
            if not self._is_quiet:
                opened.enter_context(self._board)
                opened.enter_context(self._counting_interrupts())
            try:
                while left := self._open():
                    if time.monotonic() - asked_s >= poll_s:
                        self._ask(left, when_ended)
                        asked_s = time.monotonic()
                        continue
                    self._draw(left)
                    if self._interrupts:
                        self._answer_interrupt(left)
                        asked_s = -math.inf
                    time.sleep(min(poll_s, LOOK_S))
            except Stopped:
                if left := self._open():
                    self._board.say(left_sentence(len(left), self._folder))
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
            self._board.say(f"nlu: {self._queues} does not answer ({failure}); nlu keeps asking for its jobs")

    def _see(self, one: _Followed, look: Look, when_ended: Callable[[Ticket, JobEnd], None]) -> None:
        before, one.look = one.look, look
        if look.state.is_final:
            # Fetched before the end is shown: a job whose result cannot be read yet is asked for again.
            one.end = JobEnd(look, one.job.queue.outcome(one.job.ticket))
            when_ended(one.job.ticket, one.end)
            if not self._is_quiet:
                self._board.say(self._end_line(one, one.end), style=None if one.end.word == "done" else "red")
        elif not self._is_quiet and (before is None or before.state != look.state):
            where, why = f" on {look.node}" if look.node else "", f" ({look.reason})" if look.reason else ""
            self._board.event(f"{one.name}: {look.state}{where}{why}, {one.job.queue.name} {one.job.ticket.id}")

    def _end_line(self, one: _Followed, end: JobEnd) -> str:
        line, log = f"{one.name}: {end.word}", f"; its log: {one.job.ticket.log}" if one.job.ticket.log else ""
        if end.word != "done":
            is_cancelled = end.look.state == JobState.CANCELLED
            said = end.look.reason or ("" if is_cancelled else one.last_line())
            return f"{line}{f': {said}' if said else ''}{log}"
        row = self._progress_of(one.folder)
        # The end of a stage, whose last line says how to continue (`trainer.stop_after`).
        if row.is_unfinished:
            return f"{line}, {row.last_line}{log}"
        # Jobs of other commands, such as nlu.preprocess, leave only a log.
        return f"{line}, best {row.best}" if row.best else f"{line}{log}"

    def _draw(self, left: Sequence[_Followed]) -> None:
        if self._is_quiet or not self._board.is_live:
            return
        if time.monotonic() - self._read_s > READ_RUNS_S:
            for one in left:
                if one.look is not None and one.look.state == JobState.RUNNING:
                    row = self._progress_of(one.folder)
                    one.row = replace(row, last_line=row.last_line or one.last_line())
            self._read_s = time.monotonic()
        self._board.draw([one.shown() for one in self._all])

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

    def _answer_interrupt(self, left: Sequence[_Followed]) -> None:
        jobs, has = counted(len(left), "job"), "has" if len(left) == 1 else "have"
        answers = {"c": "cancel them", "l": "leave them", "g": "go on"}
        match self._board.choose(f"{jobs} {has} not ended", answers):
            case "g":
                self._interrupts = 0
            case "c":
                self._board.say(f"cancelling {jobs}")
                try:
                    # The next Ctrl-C ends this command at once.
                    cancel(one.job for one in left)
                except (OSError, UserError) as error:
                    self._board.say(f"{error}; jobs may continue; Ctrl-C asks again")
                    self._interrupts = 0
            case _:
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
