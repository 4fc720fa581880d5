"""The tables of a run folder, which are readable after a kill at any moment.

Rows are only appended: a kill can cut the last line, never an earlier one.
"""

import numbers
import os
from collections.abc import Sequence
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.files import sync_file, write_text

Cell = str | int | float | None

TRAIN_COLUMNS = ("step", "epoch", "examples", "loss", "gnorm", "clipped", "lr", "examples_per_s", "real_tokens_per_s")
SCALE_COLUMNS = ("grad_scale", "skipped")
"""also in train.tsv if the precision scales the loss: the scale of the last step, and the number of skipped steps"""
TIME_COLUMNS = (
    "data_s", "transfer_s", "forward_s", "backward_s", "reduce_s", "optimizer_s", "evaluation_s", "saving_s", "other_s",
)  # fmt: skip
"""the last columns of train.tsv but one: seconds by phase since the previous row, see `nlu.training.phases`"""
PEAK_COLUMN = "peak_mb"
"""the last column of train.tsv: see `nlu.training.memory.peak_mb`"""
COST_COLUMNS = (*TIME_COLUMNS, PEAK_COLUMN)
VALID_COLUMNS = ("step", "epoch", "examples", "set", "metric", "value")
SAMPLE_COLUMNS = ("rows",)
"""also in valid.tsv if only samples are scored while training: the number of scored rows"""
SCALAR_COLUMNS = ("step", "epoch", "examples", "name", "value", "calls")
INSPECT_VALUES = ("gradient", "weights", "update")
"""Euclidean norms of a module (docs/troubleshooting.md)"""
INSPECT_COLUMNS = ("step", "epoch", "examples", "name", *INSPECT_VALUES)
TRAIN, VALID, SCALARS, INSPECT = "train.tsv", "valid.tsv", "scalars.tsv", "inspect.tsv"
TEXT_COLUMNS = frozenset({"set", "metric", "name"})
"""columns that are read as text, so that a set named "2024" or a metric named "inf" keeps its name"""


class Table:
    """An append-only tab-separated file with a header and fixed columns.

    The file and its folder are created if necessary. An existing file keeps its rows, except a cut last line. Raises
    DataError if it has other columns.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]):
        assert columns and len(set(columns)) == len(columns), f"columns must be distinct: {columns}"
        self.path = Path(path)
        self.columns = tuple(columns)
        lines = _complete_lines(self.path)
        if not lines:
            write_text(self.path, self._header())
        elif lines[0] != self._header():
            found = ", ".join(lines[0].split())
            raise DataError(
                f"{self.path}:1 has the columns {found} but this run writes {', '.join(self.columns)}; "
                "choose another run folder or move the file away"
            )
        else:
            # A row that a kill has cut would otherwise be continued by the next one.
            os.truncate(self.path, len("".join(lines).encode()))

    def append(self, **values: Cell) -> None:
        """Append one row; a column that is missing or None stays empty. Raises UserError for a tab or line break."""
        unknown = sorted(values.keys() - set(self.columns))
        assert not unknown, f"{unknown} are no columns of {self.path.name}: {self.columns}"
        cells = [self._cell(column, values.get(column)) for column in self.columns]
        row = memoryview(("\t".join(cells) + "\n").encode())
        # Unbuffered: a row is either in the file or not when this returns. The system may write a part, so the rest
        # follows.
        with open(self.path, "ab", buffering=0) as file:
            while row:
                row = row[file.write(row) :]

    def sync(self) -> None:
        """Sync all rows to the disk, so that they survive a power failure."""
        sync_file(self.path)

    def truncate_after(self, step: int) -> None:
        """Remove rows after `step`, and incomplete rows; the file is replaced atomically."""
        lines = _complete_lines(self.path)[1:]
        kept = [line for line in lines if (found := self._step(line)) is not None and found <= step]
        write_text(self.path, self._header() + "".join(kept))

    def _header(self) -> str:
        return "\t".join(self.columns) + "\n"

    def _step(self, line: str) -> int | None:
        cells = line[:-1].split("\t")
        if len(cells) != len(self.columns):
            return None
        value = _read_cell("step", cells[self.columns.index("step")])
        return value if isinstance(value, int) else None

    def _cell(self, column: str, value: Cell) -> str:
        if value is None:
            return ""
        # By the abstract classes, which include NumPy's numbers.
        if isinstance(value, numbers.Integral):
            return str(int(value))
        if isinstance(value, numbers.Real):
            # The shortest text that reads back as the same bits.
            return repr(float(value))
        assert isinstance(value, str), f"{column} is a {type(value).__name__}, not a number or text"
        if any(mark in value for mark in "\t\n\r"):
            raise UserError(
                f"{column} is {value!r} but a cell of {self.path.name} must not contain a tab or line break; rename it"
            )
        return value


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Cell]]:
    """Return the complete rows of a table, oldest first: integers, floats (also nan, inf), text, and None if empty.

    A cut last line is omitted. Raises DataError if the file does not exist or is not text, or if a row and the header
    differ in their number of cells.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist but the record of a run was asked for; check the run folder")
    lines = [line[:-1].split("\t") for line in _complete_lines(path)]
    for number, cells in enumerate(lines, start=1):
        if len(cells) != len(lines[0]):
            raise DataError(
                f"{path}:{number} has {len(cells)} cells but the header names {len(lines[0])}; delete that row"
            )
    return [
        {column: _read_cell(column, cell) for column, cell in zip(lines[0], cells, strict=True)} for cells in lines[1:]
    ]


def _complete_lines(path: Path) -> list[str]:
    """Return lines with their line breaks, without a last line that a kill has cut, possibly within a character."""
    if not path.exists():
        return []
    content = path.read_bytes()
    try:
        text = content[: content.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line} is not UTF-8; correct that line or move the file away") from error
    return [line + "\n" for line in text.split("\n")[:-1]]


def _read_cell(column: str, cell: str) -> Cell:
    if cell == "":
        return None
    if column in TEXT_COLUMNS:
        return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
