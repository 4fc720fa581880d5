"""Follow jobs from their submission to their end: on a terminal with a live table, elsewhere with a line an event.

A queue is asked for all jobs of this process at once, since a cluster answers thousands of users. `StatusCache` asks
every `poll_s` seconds while jobs begin or end, and down to every `slowest_poll_s` while nothing changes.
"""

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

from hydra.core.utils import JobReturn

from nlu.config.errors import UserError
from nlu.config.stopping import STOPPED, Stopped
from nlu.config.words import counted, path_text
from nlu.display.jobs import JobRow, JobsBoard
from nlu.jobs.queue import JobState, Look, Queue, Ticket

READ_RUNS_S = 2.0
"""how often the live table reads the tables of running jobs again"""
SHORTEST_POLL_S = 0.1
POLL_S = 5.0
"""the interval for a queue without a `poll_s`"""
SLOWER = 1.5
"""the factor by which the interval grows after an answer that brought nothing new"""
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


class StatusCache:
    """The last known states of the jobs of a queue, shared by several threads that wait for different jobs."""

    _shared: dict[str, "StatusCache"] = {}
    _sharing = threading.Lock()

    def __init__(self, queue: Queue, say: Callable[[str], None]):
        self._queue, self._say = queue, say
        self._lock = threading.Lock()
        self._wanted: dict[str, Look | None] = {}
        self._asked_s = -math.inf
        self._poll_s = self._interval_s = getattr(queue, "poll_s", POLL_S)
        self._slowest_s = max(self._poll_s, getattr(queue, "slowest_poll_s", self._poll_s))
        self._failures = 0

    @classmethod
    def of(cls, queue: Queue, say: Callable[[str], None]) -> "StatusCache":
        """Return the cache that all jobs of queues of this name share in this process."""
        if getattr(queue, "poll_s", POLL_S) < 1:
            # A queue that may be asked so often is cheap to ask, and only knows its own jobs.
            return cls(queue, say)
        with cls._sharing:
            return cls._shared.setdefault(queue.name, cls(queue, say))

    def at(self, ids: Sequence[str]) -> Mapping[str, Look | None]:
        """Return what the queue last said of these jobs, None for a job of which it has said nothing yet.

        The queue is asked if the interval has passed.
        """
        with self._lock:
            if new := [id for id in ids if id not in self._wanted]:
                # A new job does not ask at once: a search starts trials one by one, and each would ask for all of them.
                self._wanted |= dict.fromkeys(new)
                self._interval_s = self._poll_s
            if time.monotonic() - self._asked_s >= self._interval_s:
                self._ask()
            return {id: self._wanted[id] for id in ids}

    def forget(self, ids: Sequence[str]) -> None:
        """Stop asking for these jobs."""
        with self._lock:
            for id in ids:
                self._wanted.pop(id, None)

    def _ask(self) -> None:
        # Jobs that have ended are not asked for again.
        before = {id: look for id, look in self._wanted.items() if look is None or not look.state.is_final}
        try:
            if before:
                self._wanted |= self._queue.look(list(before))
            self._failures = 0
        except OSError as error:
            self._failures += 1
            if self._failures == AWAY_AFTER:
                self._say(f"{self._queue.name} does not answer ({error}); nlu keeps asking for its jobs")
        is_changed = any(_state(self._wanted[id]) != _state(look) for id, look in before.items())
        # Something ended or began, so more is likely to happen soon.
        self._interval_s = self._poll_s if is_changed else min(SLOWER * self._interval_s, self._slowest_s)
        # Also after a failure, so that a queue that does not answer is not asked more often.
        self._asked_s = time.monotonic()


def _state(look: Look | None) -> object:
    return None if look is None else look.state


class Follower:
    """Follows jobs. `names` has the name of each job for the user, by token; `folder` is that of the submission."""

    def __init__(
        self,
        queue: Queue,
        tickets: Sequence[Ticket],
        names: Mapping[str, str],
        folder: Path,
        progress_of: Callable[[Path], JobRow] = lambda folder: JobRow(),
    ):
        self._queue, self._tickets, self._names, self._folder = queue, list(tickets), names, folder
        self._progress_of = progress_of
        # The trials of a search wait side by side, each in its own thread, and the search prints their events.
        self._is_quiet = threading.current_thread() is not threading.main_thread()
        # The trials of a search are followed by one thread each, which share the cache; one thread follows a grid.
        self._cache = StatusCache.of(queue, self._say) if self._is_quiet else StatusCache(queue, self._say)
        self._shown: dict[str, Look | None] = {}
        self._ended: dict[str, JobEnd] = {}
        self._interrupts = 0
        self._has_said_away = False
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
            if count := len(self._tickets) - len(self._ended):
                self._say(left_sentence(count, self._folder))
            raise

    def _run(self, when_ended: Callable[[Ticket, JobEnd], None]) -> dict[str, JobEnd]:
        poll_s = max(SHORTEST_POLL_S, min(1.0, getattr(self._queue, "poll_s", 1.0)))
        ids = [ticket.id for ticket in self._tickets]
        with contextlib.ExitStack() as opened:
            if not self._is_quiet:
                self._board = opened.enter_context(JobsBoard(len(self._tickets)))
                opened.enter_context(self._counting_interrupts())
            while True:
                looks = self._cache.at(ids)
                for ticket in self._tickets:
                    self._see(ticket, looks[ticket.id], when_ended)
                if len(self._ended) == len(self._tickets):
                    break
                self._draw()
                if self._interrupts:
                    self._answer_interrupt()
                time.sleep(poll_s)
            self._cache.forget(ids)
        return self._ended

    def _see(self, ticket: Ticket, look: Look | None, when_ended: Callable[[Ticket, JobEnd], None]) -> None:
        token = ticket.job.token
        before = self._shown.get(token)
        if look is None or token in self._ended or look == before:
            return
        if look.state.is_final:
            try:
                # Fetched before the end is shown: a job whose result cannot be read yet is asked for again at the next
                # look.
                outcome = self._queue.outcome(ticket.id)
            except OSError as error:
                self._say_away(error)
                return
            end = JobEnd(look, outcome)
            self._shown[token], self._ended[token] = look, end
            when_ended(ticket, end)
            if not self._is_quiet:
                self._board.say(self._end_line(ticket, end), style=None if end.word == "done" else "red")
            return
        self._shown[token] = look
        if not self._is_quiet and (before is None or before.state != look.state):
            self._board.event(self._state_line(ticket, look))

    def _say_away(self, error: OSError) -> None:
        """Say once that the result of a job cannot be fetched; the next look tries again."""
        if not self._has_said_away:
            self._has_said_away = True
            self._say(
                f"{self._queue.name} does not return the results of its jobs ({error}); nlu keeps asking for them"
            )

    def _last_line(self, ticket: Ticket) -> str:
        # A line for the table is not worth an error.
        with contextlib.suppress(OSError):
            return " ".join(self._queue.log_tail(ticket.id))
        return ""

    def _state_line(self, ticket: Ticket, look: Look) -> str:
        where = f" on {look.node}" if look.node else ""
        why = f" ({look.reason})" if look.reason else ""
        return f"{self._names[ticket.job.token]}: {look.state}{where}{why}, {self._queue.name} {ticket.id}"

    def _end_line(self, ticket: Ticket, end: JobEnd) -> str:
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
        said = end.look.reason or ("" if is_cancelled else self._last_line(ticket))
        return f"{line}{f': {said}' if said else ''}{f'; its log: {ticket.log}' if ticket.log else ''}"

    def _draw(self) -> None:
        if self._is_quiet or not self._board.is_live:
            return
        if time.monotonic() - self._read_s > READ_RUNS_S:
            for ticket in self._tickets:
                look = self._shown.get(ticket.job.token)
                if look is not None and look.state == JobState.RUNNING:
                    row = self._progress_of(Path(ticket.job.folder))
                    self._rows[ticket.job.token] = replace(row, last_line=row.last_line or self._last_line(ticket))
            self._read_s = time.monotonic()
        self._board.draw([self._row(ticket) for ticket in self._tickets])

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
        open_tickets = [ticket for ticket in self._tickets if ticket.job.token not in self._ended]
        has = "has" if len(open_tickets) == 1 else "have"
        answer = self._board.choose(
            f"{counted(len(open_tickets), 'job')} {has} not ended",
            {"c": "cancel them", "l": "leave them", "g": "go on"},
        )
        if answer == "g":
            self._interrupts = 0
        elif answer == "c":
            self._board.say(f"cancelling {counted(len(open_tickets), 'job')}")
            try:
                # The next Ctrl-C ends this command at once.
                self._queue.cancel([ticket.id for ticket in open_tickets])
            except OSError as error:
                self._board.say(
                    f"{self._queue.name} does not answer ({error}), so jobs may continue; Ctrl-C asks again"
                )
                self._interrupts = 0
            except UserError as error:
                self._board.say(f"{error}; Ctrl-C asks again")
                self._interrupts = 0
        else:
            self._board.say(left_sentence(len(open_tickets), self._folder))
            raise Detached


def left_sentence(count: int, folder: Path) -> str:
    """Return what the user can do about jobs for which no command waits."""
    shown = shlex.quote(path_text(folder))
    verb = "continues" if count == 1 else "continue"
    return (
        f"{counted(count, 'job')} {verb}; python -m nlu.report --follow {shown} follows, "
        f"python -m nlu.jobs {shown} --cancel cancels, and the same command collects"
    )
