"""How a search handles failures, and what becomes of its running jobs when it is asked to stop.

It ends if several trials in a row fail with the same error. A trial whose job was interrupted starts again. If it makes
no progress, it is set aside for this command, or fails if its process dies.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.jobs.following import cancel_jobs, latest
from nlu.jobs.full_queue import give_up
from nlu.jobs.submissions import Submissions
from nlu.search import trial_steps
from nlu.search.board import Board
from nlu.search.channel import ATTEMPT, REASON
from nlu.search.faults import machine_fault
from nlu.search.slots import REMEDY, Ended, Slots
from nlu.storage.refusals import Pauses

RESTARTS = Pauses(1.0, 60.0, 10)
"""the pauses of a trial whose jobs end early without progress; after the last one it is set aside"""
DEATHS = 3
"""so often in a row the process of a trial dies without progress before the trial fails"""
SINCE = "since"
"""user attribute of a trial: the first `launch` of those in a row that ended without a word, and where the trial is
`at` (see `place_of`)"""
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


def place_of(frozen: FrozenTrial, folder: Path, command: str) -> list[Any]:
    """Return what changes when a trial gets further: it failed, reported, saved, or got a step.

    `command` names the command whose launches are compared, empty if all of the search are.
    """
    examples, decided = frozen.last_step or 0, len(trial_steps.steps_of(frozen))
    return [frozen.user_attrs.get(ATTEMPT, 0), examples, decided, _saved_at(folder), command]


def _saved_at(folder: Path) -> int:
    """Return when a run in this folder, or a fold of it, last saved its state."""
    last = 0
    for path in folder.glob("**/checkpoints/last/state.json"):
        try:
            last = max(last, path.stat().st_mtime_ns)
        except OSError:
            # The next checkpoint is just replacing it.
            continue
    return last


def since(frozen: FrozenTrial, launch: int, place: list[Any]) -> dict[str, Any]:
    """Return the attribute SINCE for a launch of a trial that is at a place.

    `launch` minus that of the attribute is how often in a row its process has died without progress: no launch before
    has left an outcome or a reason. This is counted in the storage, since the process may be that of the
    search.
    """
    held: dict[str, Any] | None = frozen.user_attrs.get(SINCE)
    has_word = frozen.user_attrs.get(REASON, {}).get("launch") == launch - 1
    return {"launch": launch, "at": place} if held is None or held["at"] != place or has_word else held


def early_end(ended: Ended, frozen: FrozenTrial) -> str | None:
    """Return why a job ended early although its process lived on, so that its trial continues; None for another end."""
    if ended.failure is not None and (fault := machine_fault(ended.failure)) is not None:
        return f"its job stopped (a fault of its machine: {fault})"
    if ended.value in stopping.STOPPED:
        left = frozen.user_attrs.get(REASON, {})
        return f"its job stopped ({left['error'] if left.get('launch') == ended.launch else 'no reason known'})"
    return None


def launch_problem(ended: Ended, launcher: str, folder: Path) -> UserError | None:
    """Return the error of a launcher that does not run the jobs of this search; None if it ran this one."""
    if ended.refusal is not None:
        return UserError(
            f"trial {ended.number}: {ended.refusal}{REMEDY}, and the same command with hydra.sweep.dir={folder} "
            "continues"
        )
    if ended.never_began:
        return UserError(
            f"{launcher.rpartition('.')[2]} cannot run a single job with hydra.sweep.subdir={ended.number}: "
            f"{ended.reason}; choose another hydra/launcher"
        )
    return None


@dataclass
class Restarts:
    """Trials whose jobs ended early: when each may start again, and which are set aside until the next command.

    The cause may affect only one trial, such as a machine with a full disk or a job that is always preempted, so the
    search goes on with the others.
    """

    set_aside: dict[int, str] = field(default_factory=dict)
    """the trials that were set aside, with the reason"""
    _pauses: dict[int, Iterator[float]] = field(default_factory=dict)
    _due_s: dict[int, float] = field(default_factory=dict)

    def interrupted(self, number: int, why: str, *, got_further: bool) -> float | None:
        """Return the pause of a trial in seconds; None if it is set aside, after too many without progress."""
        if got_further:
            self.progressed(number)
            return 0.0
        pause_s = next(self._pauses.setdefault(number, iter(RESTARTS)), None)
        if pause_s is None:
            self.set_aside[number] = why
        else:
            self._due_s[number] = time.monotonic() + pause_s
        return pause_s

    def progressed(self, number: int) -> None:
        """Forget the interruptions of a trial that has made progress or has ended."""
        self._pauses.pop(number, None)
        self._due_s.pop(number, None)

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
            *(f"trial{'s' * (len(own) > 1)} {', '.join(map(str, own))}: {why}" for why, own in numbers.items()),
            remedy=f"correct that, and the same command with hydra.sweep.dir={folder} continues; no trial is lost",
        )


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
