"""Which predictions are looked into: those of one run, or the out-of-fold ones of all folds together."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.words import path_text
from nlu.reports.aggregate import Row, missing_folds
from nlu.reports.compare import one_row
from nlu.reports.runs import Run, saved_config
from nlu.runs.predictions import Predictions, Record, kept_sets, predictions_of
from nlu.sweeps.repeats import HELD_OUT, OUT_OF_FOLD, JoinedFolds, join_folds


@dataclass(frozen=True)
class Subject:
    """The predictions of a set, and the run or the folds that made them."""

    folder: Path
    """as it was named"""
    run: Run
    """the run, or the first fold"""
    set_name: str
    config: dict[str, Any]
    """with all keys"""
    predictions: Predictions | None
    """of a single run"""
    joined: JoinedFolds | None = None
    """of all folds"""
    remarks: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return OUT_OF_FOLD if self.joined else self.set_name

    @property
    def is_held_out(self) -> bool:
        """Whether the rows are held out of the training rows, in whose files they stand."""
        return self.set_name == HELD_OUT and (self.run.fold is not None or self.config["data"].get("dev") is None)

    def records(self) -> Iterator[Record]:
        """Give the records in order of `id`, those of folds with their `fold`; read anew at each call."""
        if self.joined is not None:
            return self.joined.records()
        assert self.predictions is not None, "a single run or folds"
        return iter(self.predictions)

    def threshold_of(self, record: Record) -> float:
        """Return the threshold by which the prediction of a record was decided; 0 where there is none."""
        part = self.joined.parts[record["fold"]] if self.joined else self._any
        return float((part.header.get("metrics") or {}).get("threshold") or 0.0)

    @property
    def _any(self) -> Predictions:
        if self.joined is not None:
            return next(iter(self.joined.parts.values()))
        assert self.predictions is not None, "a single run or folds"
        return self.predictions


def subject_of(folder: Path, set_name: str | None = None, seed: int | None = None) -> Subject:
    """Find the predictions of a run, or of all folds of a seed.

    `set_name` None: the held-out rows of folds, of a single run the set that decides. `seed` None: the first one.
    Raises UserError for a folder that is no run, a set or a seed that is not there, and folds that are not all
    complete.
    """
    row = one_row(folder)
    chosen = _seed_of(row, seed, folder)
    runs = [run for run in row.runs if run.seed == chosen]
    others = [str(other) for other in row.seeds if other != chosen]
    remarks = [f"of several seeds this is {chosen}; --seed takes one of {', '.join(others)}"] if others and (
        seed is None
    ) else []  # fmt: skip
    if len(runs) > 1:
        return _of_folds(folder, row, runs, set_name, remarks)
    (run,) = runs
    names = kept_sets(run.folder)
    if not names:
        raise UserError(f"{path_text(run.folder)} keeps no predictions yet; wait for an evaluation, or train it")
    default = row.set_name if row.set_name in names else next((name for name in names if name != "test"), names[0])
    name = set_name or default
    if name not in names:
        raise UserError(f"--set is {name}, of which {path_text(run.folder)} keeps no predictions; {hint(name, names)}")
    return Subject(folder, run, name, saved_config(run.folder), predictions_of(run.folder, name), None, remarks)


def _seed_of(row: Row, seed: int | None, folder: Path) -> int | None:
    if seed is None:
        return row.seeds[0]
    if seed not in row.seeds:
        held = ", ".join(map(str, row.seeds))
        raise UserError(f"--seed is {seed}, but {path_text(folder)} holds the seeds {held}; give one of them")
    return seed


def _of_folds(folder: Path, row: Row, runs: list[Run], set_name: str | None, remarks: list[str]) -> Subject:
    if set_name not in (None, HELD_OUT, OUT_OF_FOLD):
        raise UserError(
            f"--set is {set_name}, but {path_text(folder)} consists of {len(runs)} folds, each of which scored it; "
            f"name one of them, such as {path_text(runs[0].folder)}"
        )
    if missing := missing_folds(Row([*runs], row.metric, row.set_name)):
        raise UserError(*missing, remedy="finish them with resume=auto, or name one fold that is complete")
    joined = join_folds([run.folder for run in sorted(runs, key=lambda run: run.fold)])
    return Subject(folder, runs[0], HELD_OUT, saved_config(runs[0].folder), None, joined, remarks)
