"""A predicted row, the contract of the formats in which it is written, and what they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from nlu.config.errors import DataError
from nlu.data.originals import Original, Originals
from nlu.data.workbook import cell_text
from nlu.metrics.kinds import Cell
from nlu.storage.files import json_text


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
