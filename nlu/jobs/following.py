"""Follow jobs from their submission to their end: a line for each event."""

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hydra.core.utils import JobReturn

from nlu.config.sentences import counted, path_text
from nlu.config.stopping import STOPPED, Stopped
from nlu.display.progress_bars import console
from nlu.jobs.queue import JobState, Look, QueuedJob, Ticket, look_at

AWAY_AFTER = 3
"""the number of failed questions in a row after which a message says that the queue does not answer"""


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
