"""How a search handles failures, and what becomes of its running jobs when it is asked to stop.

It ends if several trials in a row fail with the same error. A trial whose job was interrupted starts again; a trial
that makes no progress is set aside.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.jobs.listing import cancel_jobs, latest
from nlu.jobs.submissions import Submissions
from nlu.jobs.waiting import give_up
from nlu.storage.temporary import Pauses
from nlu.search.channel import COMPLETE, FAILED, worked_s
from nlu.search.goals import is_infeasible

from nlu.search.board import Board
from nlu.search.slots import Slots

RESTARTS = Pauses(1.0, 60.0, 10)
"""the pauses of a trial whose jobs stop without progress; after the last one it is set aside"""
STOPPED, AT_FAULT, LOST = "stopped", "at fault", "lost"
"""how a job is interrupted: it saved its state and stopped, its machine had a fault, or it vanished"""
MOST = {STOPPED: math.inf, AT_FAULT: 3, LOST: 3}
"""interruptions in a row without progress after which a trial is set aside, or fails if its jobs vanish"""
WAIT_S, AGAIN_S = 60.0, 2.0


class FailuresEndSearch(UserError):
    """Failed trials end the search, as its settings demand."""


@dataclass
class Failures:
    """Trials that failed since this command began; a user who continues a search may have fixed earlier errors."""

    folder: Path
    limit: int
    """the number of trials in a row with the same error that ends the search; 0: never"""
    shown: dict[str, int] = field(default_factory=dict)
    """by error, the first trial that failed with it"""
    alike: list[int] = field(default_factory=list)
    """the last trials, which failed in a row with the same error"""
    last_kind: str = ""

    def words(self, number: int, error: str) -> str:
        """Return the error the first time, and a reference to that trial later."""
        if error in self.shown:
            return "the same again" if self.shown[error] == number else f"the same as trial {self.shown[error]}"
        self.shown[error] = number
        return error

    def ended(self, *, well: bool) -> None:
        """Count a trial that ended."""
        if well:
            self.alike.clear()

    def failed(self, number: int, error: str, ended_count: int) -> None:
        """Count a trial that failed finally. `ended_count` trials have ended so far.

        Raises FailuresEndSearch if the last trials failed with the same error.
        """
        kind = _kind_of(error.replace(str(self.folder), ""))
        self.alike = [*self.alike, number] if kind == self.last_kind else [number]
        self.last_kind = kind
        if not self.limit or len(self.alike) < self.limit:
            return
        key = "hydra.sweeper.stop_after_same_failures=0 continues anyway"
        # Nothing has worked so far, so the cause is probably in the command itself.
        if ended_count == len(self.alike):
            raise FailuresEndSearch(
                f"the first {counted(ended_count, 'trial')} failed with the same error, shown above; correct it, and "
                f"begin in another hydra.sweep.dir; {key}"
            )
        raise FailuresEndSearch(
            f"trials {', '.join(map(str, self.alike))} failed one after another with the same error, shown above; "
            f"correct it, and the same command with hydra.sweep.dir={self.folder} continues with the rest; {key}"
        )


_QUOTED_PATH, _PATH = re.compile(r"""(['"])[^'"]*/[^'"]*\1"""), re.compile(r"\S*/\S*")
_NUMBER = re.compile(r"\b\d[\w.+-]*(?: [kKMGT]i?B\b)?")


def _kind_of(error: str) -> str:
    """Return an error, the class with its text, without what differs from trial to trial: paths, numbers, units."""
    return _NUMBER.sub("N", _PATH.sub("PATH", _QUOTED_PATH.sub("PATH", error)))


@dataclass
class Restarts:
    """Trials whose jobs were interrupted: how often in a row without progress, and when each may start again.

    The cause may affect only one trial, such as a machine with a full disk or a job that is always preempted. So a
    trial that is interrupted too often is set aside, and the search continues with the others. When no other trial is
    left, those that were set aside start again if any trial has made progress since; otherwise the search ends.
    """

    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    """how often a trial was interrupted in each way"""
    set_aside: dict[int, str] = field(default_factory=dict)
    """the trials that were set aside, with the reason, a sentence without its subject"""
    _pauses: dict[int, Iterator[float]] = field(default_factory=dict)
    _due_s: dict[int, float] = field(default_factory=dict)
    _any_progressed: bool = False
    """whether a trial has made progress since the last one was set aside"""

    def interrupted(self, number: int, way: str, *, got_further: bool) -> float | None:
        """Count an interruption; returns the pause of the trial in seconds, None after too many without progress."""
        if got_further:
            self.progressed(number)
            return 0.0
        self.counts[number, way] += 1
        # One row of pauses for all kinds of interruptions, so that a trial that alternates between them is set aside
        # too.
        is_many = self.counts[number, way] >= MOST[way]
        pause_s = None if is_many else next(self._pauses.setdefault(number, iter(RESTARTS)), None)
        if pause_s is not None:
            self._due_s[number] = time.monotonic() + pause_s
        return pause_s

    def progressed(self, number: int) -> None:
        """Reset the counts of a trial that has made progress or has ended."""
        self._any_progressed = True
        self._forget(number)

    def put_aside(self, number: int, why: str) -> None:
        """Keep a trial from starting until `recall`."""
        self.set_aside[number] = why
        self._any_progressed = False

    def recall(self) -> bool:
        """Let the trials that were set aside start again, unless no trial has made progress since; returns whether."""
        if not self._any_progressed:
            return False
        for number in list(self.set_aside):
            self._forget(number)
        return True

    def next_due(self, waiting: list[int]) -> int | None:
        """Remove and return the first waiting trial whose pause is over, or None."""
        now_s = time.monotonic()
        number = next(
            (one for one in waiting if one not in self.set_aside and self._due_s.get(one, now_s) <= now_s), None
        )
        if number is not None:
            waiting.remove(number)
        return number

    def error(self, folder: Path) -> UserError:
        """Return the error that ends a search in which only trials that were set aside are left."""
        numbers: dict[str, list[int]] = {}
        for number, why in sorted(self.set_aside.items()):
            numbers.setdefault(why.replace(str(folder / str(number)), "FOLDER"), []).append(number)
        return UserError(
            *(f"trial{'s' * (len(own) > 1)} {', '.join(map(str, own))} {why}" for why, own in numbers.items()),
            remedy=f"correct that, and the same command with hydra.sweep.dir={folder} continues; no trial is lost",
        )

    def _forget(self, number: int) -> None:
        for way in MOST:
            self.counts.pop((number, way), None)
        by_trial: list[dict[int, Any]] = [self.set_aside, self._pauses, self._due_s]
        for each in by_trial:
            each.pop(number, None)


def none_completed(trials: Sequence[FrozenTrial]) -> UserError | None:
    """Return the error of a search without a best trial; None if it has one."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not all(map(is_infeasible, complete)):
        return None
    within = " within the constraints" if complete else ""
    return UserError(f"of {counted(len(trials), 'trial')} none completed{within}; a best trial needs one")


@dataclass
class Running:
    """A trial whose job was launched by this command."""

    folder: Path
    frozen: FrozenTrial
    attempt: int
    launch: int

    def __post_init__(self) -> None:
        self._examples, self._saved = self.frozen.last_step or 0, saved_mark(self.folder)
        self._began_s = time.monotonic()

    def got_further(self, now: FrozenTrial) -> bool:
        """Whether the trial has reported or saved anything since the launch."""
        return (now.last_step or 0) > self._examples or saved_mark(self.folder) != self._saved

    def outcome(self, now: FrozenTrial, value: float | None, error: str) -> dict[str, Any]:
        """Return what `TrialChannel.finish` would have written; `error` is empty for a complete trial.

        A program that does not know its trial has one job, whose time is counted here.
        """
        return {
            "state": FAILED if error else COMPLETE,
            "attempt": self.attempt,
            "value": value,
            "examples": None,
            "wall_s": worked_s(now) or time.monotonic() - self._began_s,
            "ended_s": time.time(),
            "folder": str(self.folder),
            "error": error,
            "log": None,
        }


def saved_mark(folder: Path) -> Mapping[str, int]:
    """Return what changes whenever a run in this folder, or a fold of it, saves its state."""
    found: dict[str, int] = {}
    for path in folder.glob("**/checkpoints/last/state.json"):
        try:
            # Times are compared instead of contents, since each save replaces the file.
            found[str(path.relative_to(folder))] = path.stat().st_mtime_ns
        except OSError:
            # The next checkpoint is just replacing it.
            continue
    return found


def end_jobs(slots: Slots, running: set[int], folder: Path, board: Board) -> None:
    """Have local jobs save their state and end. Jobs on other machines continue, and are found again."""
    # Threads that wait for room in a queue stop waiting.
    give_up()
    # A job in this process has ended by now, and elsewhere only what a queue has taken goes on.
    taken = {one.job.number for _, one in latest([Submissions(folder)]) if one.ticket is not None}
    left = set(running) if slots.is_local else running & taken
    if not left:
        return
    one = len(left) == 1
    numbers = ", ".join(map(str, sorted(left)))
    under_way = f"trial {numbers} is under way" if one else f"trials {numbers} are under way"
    if not slots.is_local:
        board.say(
            f"{under_way} elsewhere, and {'continues' if one else 'continue'} there; python -m nlu.jobs {folder} "
            "--cancel ends such jobs"
        )
        return
    board.say(f"{under_way}: {'it saves its state and ends' if one else 'they save their state and end'}")
    deadline_s = time.monotonic() + WAIT_S
    while left and time.monotonic() < deadline_s:
        # Repeated, since a job may be about to start.
        try:
            cancel_jobs(folder, left)
        except UserError as error:
            # Jobs that only another machine can end. Those of this one have ended.
            board.say(str(error))
            return
        if (last := slots.next_ended(AGAIN_S)) is not None:
            left.discard(last.number)
