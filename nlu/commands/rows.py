"""Rows of a program, written into files that the readers of data read, and kept in the folder of a run."""

import filecmp
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.words import listed, shortened
from nlu.data.readers import class_names, with_names
from nlu.runs.folder import CONFIG, FOLDER_KEY, ROWS

ROWS_AT_ONCE = 1000
KINDS = "a DataFrame, a list of dicts or a datasets.Dataset"


def write_rows(rows: object, name: str, folder: Path) -> Path:
    """Write the rows of a set into FOLDER/NAME.jsonl and return it.

    `rows` are a DataFrame of pandas, a list of mappings, or a datasets.Dataset, whose numbers of a ClassLabel become
    names. What JSON lacks becomes a text; NaN becomes null. Raises DataError for anything else, and for no rows.
    """
    path, line, count = folder / f"{name}.jsonl", "", 0
    # A lone surrogate, which UTF-8 lacks, becomes what JSON writes for it, and the reader says in which row it is.
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        for row in _records(rows, name):
            nan = {key for key, value in row.items() if isinstance(value, float) and isnan(value)}
            plain = {str(key): None if key in nan else value for key, value in row.items()}
            line = json.dumps(plain, ensure_ascii=False, default=_plain)
            file.write(f"{line}\n")
            count += 1
    if not count:
        raise DataError(f"{name} is empty; give it at least one row")
    if count == 1:
        # An object alone in a file may be a document that has the rows within.
        path.write_text(f"[{line}]\n", encoding="utf-8", errors="backslashreplace")
    return path


@contextmanager
def kept_rows(written: Mapping[str, Path], run_dir: Path) -> Iterator[dict[str, Path]]:
    """Move the files of sets into RUN/rows and yield where they are; without a run at the end, they are removed.

    A run that is continued has these files already. Raises UserError if its rows are others.
    """
    kept = {name: run_dir / ROWS / path.name for name, path in written.items()}
    new = [name for name, path in kept.items() if not path.is_file()]
    differing = [name for name, path in kept.items() if name not in new and not filecmp.cmp(path, written[name], False)]
    if strange := differing + (new if (run_dir / CONFIG).is_file() else []):
        raise UserError(
            f"{run_dir} holds other rows of {listed(strange)}; give the same rows to continue its run, or choose "
            f"another {FOLDER_KEY}"
        )
    if new:
        (run_dir / ROWS).mkdir(parents=True, exist_ok=True)
    try:
        for name in new:
            shutil.move(written[name], kept[name])
        yield kept
    finally:
        if not (run_dir / CONFIG).is_file():
            for name in new:
                kept[name].unlink(missing_ok=True)
            for folder in (run_dir / ROWS, run_dir):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def _records(rows: Any, name: str) -> Iterator[Mapping[Any, Any]]:
    if hasattr(rows, "with_format") and hasattr(rows, "features"):
        named = class_names(rows.features.to_dict())
        # As Arrow, since images and sounds would be decoded otherwise.
        for table in rows.with_format("arrow").iter(ROWS_AT_ONCE):
            for record in table.to_pylist():
                yield {key: with_names(value, named[key]) if key in named else value for key, value in record.items()}
    elif hasattr(rows, "iloc") and hasattr(rows, "columns"):
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = rows.iloc[first : first + ROWS_AT_ONCE]
            yield from part.astype(object).where(part.notna(), None).to_dict("records")
    elif isinstance(rows, list | tuple):
        if wrong := [row for row in rows if not isinstance(row, Mapping)]:
            raise DataError(f"{name} has the row {shortened(repr(wrong[0]))}; make it a dict")
        yield from rows
    else:
        remedy = f"; for a file, give the override data.{name}={rows}" if isinstance(rows, str | Path) else ""
        raise DataError(f"{name} is a {type(rows).__name__}, but must be {KINDS}{remedy}")


def _plain(value: Any) -> object:
    """Return what JSON can hold for a value of numpy, torch or another library."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
