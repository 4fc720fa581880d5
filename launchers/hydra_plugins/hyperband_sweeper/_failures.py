"""When a search ends because of what fails: trials that fail alike one after another, machines that are at fault."""

from dataclasses import dataclass, field
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import counted

FAULTS_MAX = 3
"""How often in a row, no trial having ended in between, machines may be at fault before the search ends."""


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
