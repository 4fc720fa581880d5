"""What a search does about failures: it ends where trials fail alike one after another, starts a trial again whose job
ended before its end, and sets one aside that does not get any further.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optuna.trial import FrozenTrial

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.storage.temporary import Pauses

RESTARTS = Pauses(1.0, 60.0, 10)
"""how long and how often a trial pauses whose job ended before its end without having got any further"""
FAULTS_MAX = 3
"""How often in a row the machine of a trial may be at fault before the trial is set aside."""
LOST_MAX = 3
"""How often a job may vanish without a word, and without having got any further, before its trial has failed."""


class FailuresEndSearch(UserError):
    """What failed trials are said to end: the search, as its settings ask."""


@dataclass
class Failures:
    """Trials that failed since this command began: who continues a search believes to have fixed what was before."""

    folder: Path
    limit: int
    """so many trials in a row that fail with the same error end the search; 0: never"""
    told: dict[str, int] = field(default_factory=dict)
    """the trial that was first to fail with an error"""
    alike: list[int] = field(default_factory=list)
    """the trials that ended last, one after another, with the same error"""
    last_error: str = ""

    def words(self, number: int, error: str) -> str:
        """Return what to say of an error: all of it the first time."""
        if error in self.told:
            return "the same again" if self.told[error] == number else f"the same as trial {self.told[error]}"
        self.told[error] = number
        return error

    def ended(self, *, well: bool) -> None:
        """Count a trial that ended."""
        if well:
            self.alike.clear()

    def failed(self, number: int, error: str, ended_count: int) -> None:
        """Count a trial that failed for good, of so many that ended. Raises FailuresEndSearch where that ends it."""
        # What one's own folder is called does not make two errors differ.
        error = error.replace(str(self.folder / str(number)), "FOLDER")
        self.alike = [*self.alike, number] if error == self.last_error else [number]
        self.last_error = error
        if not self.limit or len(self.alike) < self.limit:
            return
        key = "hydra.sweeper.stop_after_same_failures=0 continues in spite of them"
        if ended_count == len(self.alike):
            raise FailuresEndSearch(
                f"the first {counted(ended_count, 'trial')} failed with the same error, shown above; correct it, and "
                f"begin in another hydra.sweep.dir; {key}"
            )
        raise FailuresEndSearch(
            f"trials {', '.join(map(str, self.alike))} failed one after another with the same error, shown above; "
            f"correct it, and the same command with hydra.sweep.dir={self.folder} continues with the rest; {key}"
        )


@dataclass
class Restarts:
    """Trials whose jobs ended before their end: how often in a row without having got further, and when each may start
    again.

    What stops one trial need not stop the others: a machine with a full disk, a job that is always pushed aside. So a
    trial that has ended too often is set aside, and the search continues with the others. Once nothing else is left,
    those that were set aside start again, if any trial has got further since; else they end the search.
    """

    lost: Counter[int] = field(default_factory=Counter)
    """how often a trial's job vanished"""
    stops: Counter[int] = field(default_factory=Counter)
    """how often it stopped, its state saved"""
    faults: Counter[int] = field(default_factory=Counter)
    """how often its machine was at fault"""
    set_aside: dict[int, str] = field(default_factory=dict)
    """the trials that were set aside, each with what happened to it, as a sentence without its subject"""
    _pauses: dict[int, Iterator[float]] = field(default_factory=dict)
    _due_s: dict[int, float] = field(default_factory=dict)
    _any_progressed: bool = False
    """whether a trial has got further since the last one was set aside"""

    def stopped(self, number: int, *, got_further: bool) -> float | None:
        """Count a job that stopped; returns after how many seconds its trial starts again, None where it has stopped
        too often."""
        return self._counted(self.stops, number, got_further)

    def at_fault(self, number: int, *, got_further: bool) -> float | None:
        """Count a job whose machine was at fault; returns as `stopped` does."""
        return self._counted(self.faults, number, got_further, FAULTS_MAX)

    def vanished(self, number: int, *, got_further: bool) -> float | None:
        """Count a job that is gone; returns as `stopped` does."""
        return self._counted(self.lost, number, got_further, LOST_MAX)

    def progressed(self, number: int) -> None:
        """Forget what was before: the trial has got further, or has ended."""
        self._any_progressed = True
        self._forget(number)

    def put_aside(self, number: int, why: str) -> None:
        """Have a trial start no more until `recall`."""
        self.set_aside[number] = why
        self._any_progressed = False

    def recall(self) -> bool:
        """Let the trials that were set aside start again, and return True; False where none has got further since."""
        if not self._any_progressed:
            return False
        for number in list(self.set_aside):
            self._forget(number)
        return True

    def next_due(self, waiting: list[int]) -> int | None:
        """Take out of the trials that wait the first that need not pause; None where all must."""
        now_s = time.monotonic()
        number = next(
            (one for one in waiting if one not in self.set_aside and self._due_s.get(one, now_s) <= now_s), None
        )
        if number is not None:
            waiting.remove(number)
        return number

    def error(self, folder: Path) -> UserError:
        """Return what ends a search that has nothing left but what was set aside."""
        numbers: dict[str, list[int]] = {}
        for number, why in sorted(self.set_aside.items()):
            numbers.setdefault(why.replace(str(folder / str(number)), "FOLDER"), []).append(number)
        return UserError(
            *(f"trial{'s' * (len(own) > 1)} {', '.join(map(str, own))} {why}" for why, own in numbers.items()),
            remedy=f"correct that, and the same command with hydra.sweep.dir={folder} continues; no trial is lost",
        )

    def _counted(self, counts: Counter[int], number: int, got_further: bool, most: float = math.inf) -> float | None:
        if got_further:
            self.progressed(number)
            return 0.0
        counts[number] += 1
        pause_s = next(self._pauses.setdefault(number, iter(RESTARTS)), None) if counts[number] < most else None
        if pause_s is not None:
            self._due_s[number] = time.monotonic() + pause_s
        return pause_s

    def _forget(self, number: int) -> None:
        for known in (self.lost, self.stops, self.faults, self.set_aside, self._pauses, self._due_s):
            known.pop(number, None)  # type: ignore[attr-defined]


@dataclass
class Running:
    """A trial whose job was launched by this command."""

    folder: Path
    frozen: FrozenTrial
    attempt: int
    launch: int

    def __post_init__(self) -> None:
        self._examples, self._saved = self.frozen.last_step or 0, saved_mark(self.folder)

    def got_further(self, now: FrozenTrial) -> bool:
        """Whether the trial has reported or saved anything since the launch."""
        return (now.last_step or 0) > self._examples or saved_mark(self.folder) != self._saved


def saved_mark(folder: Path) -> Mapping[str, int]:
    """Return what changes whenever a run in this folder, or a fold of it, saves its state."""
    found: dict[str, int] = {}
    for path in folder.glob("**/checkpoints/last/state.json"):
        try:
            found[str(path.relative_to(folder))] = path.stat().st_mtime_ns
        except OSError:
            # Its place is just being taken by the next one.
            continue
    return found
