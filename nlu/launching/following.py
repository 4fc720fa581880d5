"""Follow jobs from their submission to their end: on a terminal a live table, elsewhere a line for each event."""

import contextlib
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from nlu.config.errors import UserError
from nlu.config.stopping import STOPPED, Stopped
from nlu.config.words import counted, path_text
from nlu.display.jobs import JobRow, JobsBoard
from nlu.launching.looks import Looks
from nlu.launching.queue import JobState, Look, Queue, Ticket

READ_RUNS_S = 2.0
"""how often the tables of running jobs are read again for the live table"""
SHORTEST_POLL_S = 0.1


class Left(Exception):
    """The user has the jobs go on, and does not wait for them."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    look: Look
    outcome: Any
    """what it returned: a JobReturn, an exit status or None"""

    @property
    def status(self) -> int | None:
        """Its exit status; None where it left no word or raised an error."""
        if isinstance(self.outcome, JobReturn):
            value = self.outcome._return_value if self.outcome.status.name == "COMPLETED" else None
        else:
            value = self.outcome
        if value is None and self.look.state == JobState.DONE and not isinstance(self.outcome, JobReturn):
            return 0
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def word(self) -> str:
        """In a word or two what became of it."""
        if self.look.state == JobState.CANCELLED or (self.look.state == JobState.LOST and self.outcome is None):
            return str(self.look.state)
        if self.status in STOPPED:
            return "stopped"
        if isinstance(self.outcome, JobReturn) and self.outcome.status.name == "COMPLETED" and self.status is None:
            # Another program's, which returned its score.
            return "done"
        return "done" if self.status == 0 else "failed"


class Follower:
    """Follows jobs; `names` calls each by its token as a person does, `folder` is where they were submitted."""

    def __init__(self, queue: Queue, tickets: Sequence[Ticket], names: Mapping[str, str], folder: Path):
        self._queue, self._tickets, self._names, self._folder = queue, list(tickets), names, folder
        self._is_quiet = threading.current_thread() is not threading.main_thread()
        # The trials of a search wait side by side, each in a thread of its own.
        self._looks = Looks.of(queue, self._say) if self._is_quiet else Looks(queue, self._say)
        self._shown: dict[str, Look | None] = {}
        self._ended: dict[str, Ended] = {}
        self._asked = 0
        self._is_away_told = False
        self._told: dict[str, JobRow] = {}
        self._read_s = 0.0

    def _say(self, text: str) -> None:
        if self._is_quiet:
            print(f"nlu: {text}", file=sys.stderr)
        else:
            self._board.say(text)

    def run(self, when_ended: Callable[[Ticket, Ended], None] = lambda ticket, ended: None) -> dict[str, Ended]:
        """Return how each job ended, by token, once all have; `when_ended` is told at once.

        Raises Left where the user presses Ctrl-C and leaves the jobs alone, as happens without a terminal; Stopped,
        which leaves them too, on another signal.
        """
        try:
            return self._run(when_ended)
        except Stopped:
            if count := len(self._tickets) - len(self._ended):
                self._say(left_sentence(count, self._folder))
            raise

    def _run(self, when_ended: Callable[[Ticket, Ended], None]) -> dict[str, Ended]:
        poll_s = max(SHORTEST_POLL_S, min(1.0, getattr(self._queue, "poll_s", 1.0)))
        with contextlib.ExitStack() as opened:
            if not self._is_quiet:
                self._board = opened.enter_context(JobsBoard(len(self._tickets)))
                opened.enter_context(self._ctrl_c())
            while True:
                looks = self._looks.at([ticket.id for ticket in self._tickets])
                for ticket in self._tickets:
                    self._see(ticket, looks[ticket.id], when_ended)
                if len(self._ended) == len(self._tickets):
                    break
                self._draw()
                if self._asked:
                    self._answer_ctrl_c()
                time.sleep(poll_s)
            self._looks.forget([ticket.id for ticket in self._tickets])
        return self._ended

    def _see(self, ticket: Ticket, look: Look | None, when_ended: Callable[[Ticket, Ended], None]) -> None:
        token = ticket.job.token
        before = self._shown.get(token)
        if look is None or token in self._ended or look == before:
            return
        if look.state.is_final:
            try:
                outcome = self._queue.outcome(ticket.id)
            except OSError as error:
                self._say_away(error)
                return
            ended = Ended(look, outcome)
            self._shown[token], self._ended[token] = look, ended
            when_ended(ticket, ended)
            if not self._is_quiet:
                self._board.say(self._end_line(ticket, ended), style=None if ended.word == "done" else "red")
            return
        self._shown[token] = look
        if not self._is_quiet and (before is None or before.state != look.state):
            self._board.event(self._state_line(ticket, look))

    def _say_away(self, error: OSError) -> None:
        """Say once that a job's result is not to be had; it is asked for again as long as the job is followed."""
        if not self._is_away_told:
            self._is_away_told = True
            self._say(f"{self._queue.name} does not tell what its jobs returned ({error}); it is asked again and again")

    def _last_line(self, ticket: Ticket) -> str:
        # What a job said last is worth no error.
        with contextlib.suppress(OSError):
            return " ".join(self._queue.log_tail(ticket.id))
        return ""

    def _state_line(self, ticket: Ticket, look: Look) -> str:
        where = f" on {look.node}" if look.node else ""
        why = f" ({look.reason})" if look.reason else ""
        return f"{self._names[ticket.job.token]}: {look.state}{where}{why}, {self._queue.name} {ticket.id}"

    def _end_line(self, ticket: Ticket, ended: Ended) -> str:
        line = f"{self._names[ticket.job.token]}: {ended.word}"
        row = progress_of(Path(ticket.job.folder))
        if ended.word == "done":
            # What is no run, such as nlu.preprocess, has all that it says in its log.
            log = f"; its log: {ticket.log}" if ticket.log else ""
            return f"{line}, best {row.best}" if row.best else f"{line}{log}"
        is_cancelled = ended.look.state == JobState.CANCELLED
        said = ended.look.reason or ("" if is_cancelled else self._last_line(ticket))
        return f"{line}{f': {said}' if said else ''}{f'; its log: {ticket.log}' if ticket.log else ''}"

    def _draw(self) -> None:
        if self._is_quiet or not self._board.is_live:
            return
        if time.monotonic() - self._read_s > READ_RUNS_S:
            for ticket in self._tickets:
                look = self._shown.get(ticket.job.token)
                if look is not None and look.state == JobState.RUNNING:
                    row = progress_of(Path(ticket.job.folder))
                    last = row.last_line or self._last_line(ticket)
                    self._told[ticket.job.token] = replace(row, last_line=last)
            self._read_s = time.monotonic()
        self._board.draw([self._row(ticket) for ticket in self._tickets])

    def _row(self, ticket: Ticket) -> JobRow:
        token = ticket.job.token
        ended, look = self._ended.get(token), self._shown.get(token)
        told = self._told.get(token) or JobRow()
        state = ended.word if ended else str(look.state) if look else "submitted"
        return JobRow(
            name=self._names[token], state=state, node=(look.node if look else None) or "",
            examples_per_s=told.examples_per_s, best=told.best,
            last_line=told.last_line or (look.reason if look else None) or "",
        )  # fmt: skip

    @contextlib.contextmanager
    def _ctrl_c(self) -> Iterator[None]:
        def asked(number: int, frame: Any) -> None:
            self._asked += 1
            if self._asked > 1:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, asked)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _answer_ctrl_c(self) -> None:
        open_tickets = [ticket for ticket in self._tickets if ticket.job.token not in self._ended]
        has = "has" if len(open_tickets) == 1 else "have"
        answer = self._board.choose(
            f"{counted(len(open_tickets), 'job')} {has} not ended",
            {"c": "cancel them", "l": "leave them", "g": "go on"},
        )
        if answer == "g":
            self._asked = 0
        elif answer == "c":
            self._board.say(f"cancelling {counted(len(open_tickets), 'job')}")
            try:
                # The next Ctrl-C ends this command at once.
                self._queue.cancel([ticket.id for ticket in open_tickets])
            except OSError as error:
                self._board.say(f"{self._queue.name} does not answer ({error}), so jobs may go on; Ctrl-C asks again")
                self._asked = 0
            except UserError as error:
                self._board.say(f"{error}; Ctrl-C asks again")
                self._asked = 0
        else:
            self._board.say(left_sentence(len(open_tickets), self._folder))
            raise Left


def left_sentence(count: int, folder: Path) -> str:
    """Return what to do about jobs that nobody waits for."""
    shown = shlex.quote(path_text(folder))
    verb = "goes" if count == 1 else "go"
    return (
        f"{counted(count, 'job')} {verb} on; python -m nlu.report --follow {shown} follows, "
        f"python -m nlu.jobs {shown} --cancel cancels, and the same command collects"
    )


def progress_of(folder: Path) -> JobRow:
    """Return what a run's own folder tells of how far it is; an empty row of one that has not begun, or is no run."""
    from nlu.config.errors import DataError
    from nlu.display.tables import metric_text
    from nlu.launching.submitit_jobs import tail
    from nlu.reports.runs import LOG, LOG_LINE, is_run, read_run

    said = tail([folder / LOG], 1)
    match = LOG_LINE.fullmatch(said[0]) if said else None
    last = match["message"] if match else (said[0] if said else "")
    try:
        run = read_run(folder) if is_run(folder) else None
    except (DataError, OSError):
        # It may be read while a line of it is being written.
        run = None
    if run is None:
        return JobRow(last_line=last)
    value = run.value(run.set_name, run.metric)
    best = "" if value is None else f"{run.set_name} {run.metric} {metric_text(value)}"
    return JobRow(examples_per_s=run.examples_per_s, best=best, last_line=last)
