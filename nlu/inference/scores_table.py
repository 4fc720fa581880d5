"""A table of several evaluations, tab-separated: each adds a row for each of its sets."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.files import json_text, write_text
from nlu.storage.locks import Locked, hold_lock

COLUMNS = ("time", "run", "checkpoint", "set", "file", "examples")
"""the first columns; the metrics of all rows follow"""
WAIT_S = 60.0
Line = dict[str, str]


def require_table(table: str) -> None:
    """Raise UserError if a table cannot be appended to: its path is remote, its folder is missing, or it is another
    file."""
    path = Path(table).expanduser()
    if not table or path.is_dir():
        given = f"{table}, which is a folder" if table else "empty"
        raise UserError(f"table is {given}; give the path of a tsv file, such as table=scores.tsv, or leave it out")
    if "://" in table:
        raise UserError(f"table is {table}, but rows are only appended to a file here; give a local path")
    if not path.parent.is_dir():
        raise UserError(f"table is {table}, but the folder {path.parent} does not exist; make it, or choose another")
    if path.exists():
        _read(path)


def append_scores(
    table: str,
    run: str,
    checkpoint: str,
    files: Mapping[str, object],
    examples: Mapping[str, int],
    metrics: Mapping[str, Mapping[str, float | None]],
) -> None:
    """Append a row for each set to a table, which is created if it is absent; new metrics become new columns.

    `files`, `examples` and `metrics` are by set. The file is replaced as a whole, and other processes wait meanwhile.
    Raises UserError if the file is not such a table.
    """
    path, now = Path(table).expanduser(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    new = [
        dict(zip(COLUMNS, (now, run, checkpoint, name, _text(files.get(name)), str(examples[name])), strict=True))
        | {metric: "" if value is None else repr(float(value)) for metric, value in values.items()}
        for name, values in metrics.items()
    ]
    try:
        with hold_lock(path.with_name(f".{path.name}.lock"), wait_s=WAIT_S, what=f"the table {table}"):
            lines = [*(_read(path) if path.exists() else []), *new]
            write_text(path, _written(lines))
    except Locked:
        raise UserError(f"table is {table}, which another process is writing; run the command again") from None


def _read(path: Path) -> list[Line]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
            lines = list(rows)
            header = rows.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"table is {path}, which cannot be read ({error}); choose another") from error
    if tuple(header[: len(COLUMNS)]) != COLUMNS:
        raise DataError(f"{path}:1 lacks the columns {', '.join(COLUMNS)} of such a table; set table to another file")
    return lines


def _written(lines: Sequence[Line]) -> str:
    columns = list(dict.fromkeys([*COLUMNS, *(name for line in lines for name in line)]))
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
    writer.writerow(columns)
    writer.writerows([line.get(name) or "" for name in columns] for line in lines)
    return text.getvalue()


def _text(source: object) -> str:
    """Return the files of a set as a cell: a path as it is, several as JSON."""
    text = source if isinstance(source, str) else "" if source is None else json_text(source)
    return " ".join(text.split())
