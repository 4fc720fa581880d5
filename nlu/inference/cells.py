"""The cells that predictions add to a row, a predicted row, and the contract of the formats in which it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.data.layouts import Values
from nlu.data.originals import Original, Originals
from nlu.data.windows import SIGNS, WINDOWS
from nlu.data.workbook import cell_text
from nlu.inference.text_vectors import VECTOR, VectorForm
from nlu.inference.trained import Trained
from nlu.metrics.kinds import PREDICTION, PROBABILITY, Cell, Holds, Kind, SpanCell, SpanKind
from nlu.runs.predictions import Record
from nlu.storage.files import json_text

LOGITS = "logits"


@dataclass(frozen=True)
class Columns:
    """The columns that the predictions of a run add."""

    kind: Kind
    labels: tuple[str, ...]
    prefix: str
    scores: bool
    logits: bool
    logits_hold: Holds = "numbers"
    in_windows: bool = False
    spans: str = "first_last"
    form: VectorForm | None = None
    """of the vector of each row; None: without"""

    @property
    def holds(self) -> dict[str, Holds]:
        """The type of each column that every row has, by its name, in order."""
        found = dict(self.kind.columns)
        if self.spans != "first_last":
            found[PREDICTION] = "lists" if self.spans == "lists" else "spans by start"
        if self.scores:
            found |= {f"{PROBABILITY}_{label}": "number" for label in self.labels}
        if self.logits:
            found[LOGITS] = self.logits_hold
        if self.in_windows:
            found[WINDOWS] = "number"
        if self.form is not None:
            found[VECTOR] = cast(Holds, self.form.dtype)
        return {self.prefix + name: holds for name, holds in found.items()}

    def cells(self, values: Values, found: Record) -> dict[str, Cell]:
        """Return the cells of a row, given its texts by role and its prediction; `cut` only of a row that was cut."""
        cells = self.kind.cells(values, found)
        if self.spans != "first_last":
            cells[PREDICTION] = [_by_start(span, self.spans) for span in cast(list[SpanCell], cells[PREDICTION])]
        if self.scores:
            cells |= {f"{PROBABILITY}_{label}": found["probabilities"][label] for label in self.labels}
        if self.logits:
            cells[LOGITS] = found[LOGITS]
        if self.form is not None:
            cells[VECTOR] = found[VECTOR]
        cells |= {sign: found[sign] for sign in SIGNS if sign in found}
        return {self.prefix + name: cell for name, cell in cells.items()}

    def empty(self) -> dict[str, Cell]:
        """Return the cells of a row that cannot be predicted."""
        return dict.fromkeys(self.holds)


def _by_start(span: SpanCell, form: str) -> dict[str, object] | list[object]:
    """Return a span with the place behind its last unit, as tools for annotation write it."""
    start, end, label = span["first"], span["last"] + 1, span["type"]
    return (
        [start, end, label] if form == "lists" else {"start": start, "end": end, "label": label, "text": span["text"]}
    )


@dataclass(frozen=True)
class VectorColumns:
    """The only column of rows that are encoded."""

    prefix: str
    form: VectorForm
    logits: bool = False

    @property
    def holds(self) -> dict[str, Holds]:
        """The type of the column."""
        return {self.prefix + VECTOR: cast(Holds, self.form.dtype)}

    def cells(self, values: Values, found: Record) -> dict[str, Cell]:
        """Return the cells of a row."""
        return {self.prefix + VECTOR: found[VECTOR]}

    def empty(self) -> dict[str, Cell]:
        """Return the cells of a row that cannot be encoded."""
        return dict.fromkeys(self.holds)


def columns_of(
    trained: Trained, *, prefix: str, scores: bool, logits: bool, spans: str = "first_last",
    form: VectorForm | None = None,
) -> Columns:  # fmt: skip
    """Return the columns that a run's predictions add; `spans` is how spans are written, a key of nlu.predict.

    Raises UserError if `scores` or `spans` asks for what the run does not predict, and for a run that cannot predict
    rows.
    """
    require_predicting(trained)
    if scores and not trained.kind.has_probabilities:
        raise UserError("scores is true, but this run predicts no probabilities; leave out scores")
    if spans != "first_last" and not isinstance(trained.kind, SpanKind):
        raise UserError(f"spans is {spans}, but this run predicts {trained.kind.plural}; leave out spans")
    # A tagged row has logits for each of its units.
    logits_hold: Holds = "lists of numbers" if trained.layout.name == "units" else "numbers"
    in_windows = trained.lengths.long == WINDOWS
    return Columns(trained.kind, tuple(trained.labels), prefix, scores, logits, logits_hold, in_windows, spans, form)


def require_predicting(trained: Trained) -> None:
    """Raise UserError for a run that cannot predict rows without their target."""
    if trained.kind.unpredicted:
        raise UserError(f"{trained.located.run_dir}: {trained.kind.unpredicted}")


def text_of(cell: Cell, separator: str, holds: Holds) -> str:
    """Return a cell of a table: a list of labels with the separator between them, any other list as JSON."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, np.ndarray):
        return json_text(listed(cell))
    if isinstance(cell, list):
        # A label with the separator in its name would be read back as two, so such a list is written as JSON.
        if holds == "texts" and not any(separator in item for item in cell):
            return separator.join(cell)
        return json_text(cell)
    # The shortest text that reads back as the same float.
    return repr(cell)


def listed(cell: Cell) -> Cell:
    """Return a vector as a list of numbers, the shortest that read back as the same; any other cell as it is."""
    if not isinstance(cell, np.ndarray) or cell.dtype.kind != "f":
        return cell.tolist() if isinstance(cell, np.ndarray) else cell
    digits = 9 if cell.dtype == np.float32 else 5
    return [float(f"{number:.{digits}g}") for number in cell.tolist()]


@dataclass(frozen=True)
class PredictedRow:
    """A row of the input with the cells that are added, and its place for messages."""

    original: Original
    cells: dict[str, Cell]
    place: str


class OutputFormat(Protocol):
    """A format of the output."""

    def head(self) -> bytes:
        """Return the bytes before the first row."""

    def require_writable(self, original: Original, place: str) -> None:
        """Raise DataError if a row cannot be written. Called for all rows before any is predicted."""

    def piece(self, rows: Sequence[PredictedRow]) -> bytes:
        """Return rows as a piece of the output."""

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        """Write the whole output from its pieces, in order."""


def require_no_more(record: Mapping[str, object], source: Originals, place: str) -> None:
    """Raise DataError if a record has a field without a column in the table."""
    if more := [name for name in record if name not in source.columns]:
        raise DataError(
            f"{place} has a field {more[0]}, which the first record lacks, so a table would lose it; give output the "
            "suffix .jsonl"
        )


def text_of_cell(value: object) -> str:
    if isinstance(value, bool | int | float | list | dict):
        return json_text(value)
    return cell_text(value)
