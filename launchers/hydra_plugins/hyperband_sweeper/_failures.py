"""When a search ends because of what fails: trials that fail alike one after another, machines that are at fault, jobs
that stop again and again; and when a trial is started again.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.storage.temporary import Pauses

FAULTS_MAX = 3
"""How often in a row, no trial having ended in between, machines may be at fault before the search ends."""


RESTARTS = Pauses(1.0, 60.0, 10)
"""how long and how often a trial waits whose job stopped before its end without having got any further"""
LOST_MAX = 3
"""How often a job may vanish without a word, and without having got any further, before its trial has failed."""


class FailuresEndSearch(UserError):
    """What failed trials are said to end: the search, as its settings ask."""


@dataclass
class Failures:
    """What failed since this search was begun: whoever goes on with one believes to have mended what was before."""

    folder: Path
    limit: int
    """so many trials in a row that fail with the same error end the search; 0: never"""
    told: dict[str, int] = field(default_factory=dict)
    """the trial that was first to fail with an error"""
    alike: list[int] = field(default_factory=list)
    """the trials that ended last, one after another, with the same error"""
    last_error: str = ""
    faults: list[int] = field(default_factory=list)
    """the trials that were given back since one ended"""

    def words(self, number: int, error: str) -> str:
        """Return what to say of an error: all of it the first time."""
        if error in self.told:
            return "the same again" if self.told[error] == number else f"the same as trial {self.told[error]}"
        self.told[error] = number
        return error

    def ended(self, *, well: bool) -> None:
        """Count a trial that ended."""
        self.faults.clear()
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
        key = "hydra.sweeper.stop_after_same_failures=0 goes on in spite of them"
        if ended_count == len(self.alike):
            raise FailuresEndSearch(
                f"the first {counted(ended_count, 'trial')} failed with the same error, shown above; correct it, and "
                f"begin in another hydra.sweep.dir; {key}"
            )
        raise FailuresEndSearch(
            f"trials {', '.join(map(str, self.alike))} failed one after another with the same error, shown above; "
            f"correct it, and the same command with hydra.sweep.dir={self.folder} goes on with the rest; {key}"
        )

    def given_back(self, number: int, fault: str) -> None:
        """Count a trial whose machine was at fault. Raises UserError where machines fail again and again."""
        self.faults.append(number)
        if len(self.faults) >= FAULTS_MAX:
            raise UserError(
                f"the search cannot go on, for no fault of its trials: {fault}; mend that, and the same command with "
                f"hydra.sweep.dir={self.folder} goes on; no trial is lost"
            )


@dataclass
class Restarts:
    """Trials whose jobs ended before their end: how often in a row without having got further, and when each may start
    again."""

    lost: Counter[int] = field(default_factory=Counter)
    """how often a trial's job vanished"""
    stops: Counter[int] = field(default_factory=Counter)
    """how often it stopped, its state saved"""
    _pauses: dict[int, Iterator[float]] = field(default_factory=dict)
    _due_s: dict[int, float] = field(default_factory=dict)

    def stopped(self, number: int, *, got_further: bool) -> float | None:
        """Count a job that stopped; returns after how many seconds its trial starts again, None where it has stopped
        too often."""
        if got_further:
            self.progressed(number)
            return 0.0
        self.stops[number] += 1
        return self._paused(number)

    def vanished(self, number: int, *, got_further: bool) -> float | None:
        """Count a job that is gone; returns as `stopped` does."""
        if got_further:
            self.progressed(number)
            return 0.0
        self.lost[number] += 1
        return self._paused(number) if self.lost[number] < LOST_MAX else None

    def progressed(self, number: int) -> None:
        """Forget what was before: the trial has got further, or has ended."""
        for known in (self.lost, self.stops, self._pauses, self._due_s):
            known.pop(number, None)  # type: ignore[attr-defined]

    def next_due(self, waiting: list[int]) -> int | None:
        """Take out of the trials that wait the first that need not pause; None where all must."""
        now_s = time.monotonic()
        number = next((one for one in waiting if self._due_s.get(one, now_s) <= now_s), None)
        if number is not None:
            waiting.remove(number)
        return number

    def _paused(self, number: int) -> float | None:
        pause_s = next(self._pauses.setdefault(number, iter(RESTARTS)), None)
        if pause_s is not None:
            self._due_s[number] = time.monotonic() + pause_s
        return pause_s


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
