"""The predictions whose errors are reported: those of one run, or the out-of-fold ones of all folds together.

Axes: B records of a chunk.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.sentences import path_text
from nlu.config.targets import build
from nlu.data.dataset import Files, SourceFile
from nlu.data.layouts import Layout
from nlu.data.tokenizing import Tokenizer, load_tokenizer
from nlu.metrics.kinds import Kind, kind_of
from nlu.metrics.repeats import HELD_OUT, OUT_OF_FOLD, JoinedFolds, join_folds
from nlu.reports.compare import one_row
from nlu.reports.run_table import Configuration, missing_folds
from nlu.reports.runs import RunRecord, saved_config
from nlu.runs.predictions import Predictions, Record, kept_sets, predictions_of

CHECKPOINTS = ("best-1", "last")
NO_CUT = 1 << 30


@dataclass(frozen=True)
class ErrorSource:
    """The predictions of a set, and the run or the folds that made them."""

    folder: Path
    """as the user named it"""
    run: RunRecord
    """the run, or the first fold"""
    set_name: str
    config: dict[str, Any]
    """with all keys"""
    predictions: Predictions
    """of a single run, or of the first fold"""
    kind: Kind
    joined: JoinedFolds | None = None
    """of all folds"""
    remarks: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return OUT_OF_FOLD if self.joined else self.set_name

    @property
    def is_held_out(self) -> bool:
        """Whether the rows were held out of the training rows and so lie in their files."""
        return self.set_name == HELD_OUT and (self.run.fold is not None or self.config["data"].get("dev") is None)

    def records(self) -> Iterator[Record]:
        """Return the records in order of `id`, those of folds with their `fold`; each call reads the files again."""
        return self.joined.records() if self.joined is not None else iter(self.predictions)

    def metrics_of(self, record: Record) -> Mapping[str, float]:
        """Return the metrics of the set that a record was scored with, which hold its threshold."""
        part = self.joined.parts[record["fold"]] if self.joined else self.predictions
        return part.header.get("metrics") or {}


def source_of(folder: Path, set_name: str | None = None) -> ErrorSource:
    """Return the predictions of a run, or of all folds; of several seeds or own splits those of the first one.

    Without `set_name` they are the held-out rows of folds, or of a single run the set that decides. Raises UserError if
    the folder holds no run, lacks the set, or lacks folds.
    """
    row = one_row(folder)
    runs = [run for run in row.runs if row.repeat_of(run) == row.repeats[0]]
    remarks = []
    if len(row.repeats) > 1:
        remarks.append(f"of {len(row.repeats)} seeds or splits this is the first one, {path_text(runs[0].folder)}")
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
    found = predictions_of(run.folder, name)
    kind = kind_of(found, run.config)
    return ErrorSource(folder, run, name, saved_config(run.folder), found, kind, None, remarks)


def _of_folds(
    folder: Path, row: Configuration, runs: list[RunRecord], set_name: str | None, remarks: list[str]
) -> ErrorSource:
    if set_name not in (None, HELD_OUT, OUT_OF_FOLD):
        raise UserError(
            f"--set is {set_name}, but {path_text(folder)} consists of {len(runs)} folds, each of which scored it; "
            f"name one of them, such as {path_text(runs[0].folder)}"
        )
    if missing := missing_folds(Configuration([*runs], row.metric, row.set_name)):
        raise UserError(*missing, remedy="finish them with resume=auto, or name one fold that is complete")
    joined = join_folds([run.folder for run in sorted(runs, key=lambda run: run.fold or 0)])
    first = next(iter(joined.parts.values()))
    kind, config = kind_of(first, runs[0].config), saved_config(runs[0].folder)
    return ErrorSource(folder, runs[0], HELD_OUT, config, first, kind, joined, remarks)


@dataclass(frozen=True)
class TokenCounter:
    """Counts the tokens of texts as the run does, but without cutting them."""

    tokenizer: Tokenizer
    layout: Layout

    def count(self, records: Sequence[Record]) -> np.ndarray:
        """Return how many tokens each record has, special ones included, (B,); 0 for a record that kept no text."""
        tokens_B = np.zeros(len(records), np.int64)
        # The tokenizer takes either lists of words or texts, not both in one call.
        for has_words in (True, False):
            places = [
                place
                for place, record in enumerate(records)
                if has_text(record, self.layout) and has_words == ("tokens" in record)
            ]
            if places:
                rows = [dict(records[place]) for place in places]
                tokens_B[places] = self.layout.encode(self.tokenizer, rows, NO_CUT).lengths_N
        return tokens_B


def has_text(record: Record, layout: Layout) -> bool:
    """Return whether a record kept a text that its layout can read."""
    try:
        return layout.problem(record) is None
    except KeyError:
        return False


def token_counter(run_dir: Path, layout: Layout) -> TokenCounter | None:
    """Return a counter that uses the tokenizer in a checkpoint of the run; None without a checkpoint."""
    # Any checkpoint has the same tokenizer.
    for name in CHECKPOINTS:
        folder = run_dir / "checkpoints" / name
        if folder.is_dir() and (tokenizer := load_tokenizer(folder, None)) is not None:
            return TokenCounter(tokenizer, layout)
    return None


def files_of_set(source: ErrorSource) -> list[SourceFile]:
    """Return the files of the set, which name the places of records; none if they are gone or not known."""
    name = "train" if source.is_held_out else source.set_name
    try:
        files = build(source.config["data"])
        return files.sets([name])[name] if isinstance(files, Files) else []
    except (UserError, OSError, KeyError):
        return []
