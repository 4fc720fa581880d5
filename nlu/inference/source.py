"""The input of predict: find the file, read it, and report the rows that cannot be used."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.inference import STANDARD, Input
from nlu.config.nearest import hint
from nlu.config.words import counted, show_as
from nlu.data.building import LISTED_BAD_ROWS
from nlu.data.dataset import Files
from nlu.data.dialect import Dialect, not_utf_8
from nlu.data.fields import usual_fields
from nlu.data.layouts import Values
from nlu.data.originals import Original, Originals
from nlu.data.readers import BadRow, Fields, Row, column_names, format_of
from nlu.inference.rows import alternatives_of, either
from nlu.inference.trained import Trained

Problem = Callable[[Values], tuple[str, str] | None]
"""returns the field of a row that cannot be used, and the rule that its value breaks, or None"""


@contextmanager
def found(path: str, file_format: str) -> Iterator[Path]:
    """Yield the file that `input` names; standard input is copied to a file first.

    Raises UserError if the format of standard input is not given.
    """
    if path != STANDARD:
        yield Files(train=path).find("input", path)
        return
    if file_format == "auto":
        raise UserError("input is -, standard input, which has no suffix; set input.format, such as input.format=lines")
    with tempfile.TemporaryDirectory(prefix="nlu-input-") as folder:
        copy = Path(folder) / "stdin"
        show_as(copy, "standard input")
        with open(copy, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield copy


def originals_for(trained: Trained, asked: Input, path: Path) -> Originals:
    """Return the rows of a file, read as `input` demands, and otherwise as the run read its own files.

    Raises DataError if the file lacks a column for a text that the run reads.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    data = trained.config.data
    file_format: str = asked.format
    own = data.get("train")
    if file_format == "auto" and isinstance(own, str) and Path(own).suffix == path.suffix:
        file_format = data["format"]
    file_format = format_of(path, file_format)
    dialect = Dialect(asked.separator) if asked.separator is not None else _dialect(data, file_format)
    fields = _fields(trained, asked, path, file_format, dialect)
    header = asked.header
    if header is None and not asked.fields and all(isinstance(column, int) for column in fields.values()):
        header = data["header"]
    return Originals(path, file_format, fields, header, dialect)


def _dialect(data: Mapping[str, Any], file_format: str) -> Dialect:
    """Return the dialect of a file: that of the run's own files if both have the same format."""
    separator, own = data.get("separator"), data.get("train")
    if separator is None:
        # The rows of the run may come from a table of MaxCompute, which is not a file.
        return Dialect()
    own_format = format_of(Path(own), data["format"]) if isinstance(own, str) else data["format"]
    return Dialect(separator if file_format == own_format else None)


def _fields(trained: Trained, asked: Input, path: Path, file_format: str, dialect: Dialect) -> Fields:
    alternatives = alternatives_of(trained)
    if file_format == "lines":
        if ("text",) not in alternatives:
            raise DataError(f"{path}: each line is one text, but the run reads {either(alternatives)}; give a table")
        return {}
    if asked.fields:
        return _given(asked.fields, alternatives)
    trained_on: Fields = trained.config.data["fields"] or {}
    try:
        names = column_names(path, file_format, dialect)
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None
    for roles in alternatives:
        candidates: list[Fields] = [
            {role: trained_on.get(role, role) for role in roles},
            {role: role for role in roles},
            {role: column for role, column in usual_fields(names, roles).items() if role in roles},
        ]
        for fields in candidates:
            if (
                file_format == "conll"
                or set(fields) == set(roles)
                and all(_is_there(column, names) for column in fields.values())
            ):
                return fields
    # The cells of a table cannot hold lists, so the advice must not ask for tokens.
    holds_lists = file_format not in ("csv", "tsv", "xlsx")
    roles = next((roles for roles in alternatives if holds_lists or "tokens" not in roles), alternatives[0])
    wanted = {role: trained_on.get(role, role) for role in roles}
    absent = [str(column) for column in wanted.values() if not _is_there(column, names)]
    raise DataError(
        f"{path}: the column {absent[0]}, which the run reads, is missing; the file has {names[:12]}; "
        f"{hint(absent[0], names)}; set input.fields to e.g. "
        f"{{{', '.join(f'{role}: COLUMN' for role in roles)}}}"
    )


def _given(fields: Fields, alternatives: tuple[tuple[str, ...], ...]) -> Fields:
    for roles in alternatives:
        if set(roles) <= set(fields):
            return {role: fields[role] for role in roles}
    raise UserError(f"input.fields is {fields}, but the run reads {either(alternatives)}; set input.fields to these")


def _is_there(column: str | int, names: list[str]) -> bool:
    return column < len(names) if isinstance(column, int) else column in names


def require_usable(
    source: Originals,
    problem: Problem,
    require_writable: Callable[[Original, str], None],
    *,
    may_skip: bool,
    max_rows: int | None,
) -> int:
    """Read every row once and return the number of rows.

    Raises DataError for rows that cannot be used, unless `may_skip`, for a row that the output cannot hold, and for a
    file without rows.
    """
    count, wrong = 0, 0
    listed: list[str] = []
    for row, original in source.rows():
        count += 1
        if (bad := bad_row(row, source, problem)) is not None:
            wrong += 1
            if len(listed) < LISTED_BAD_ROWS:
                listed.append(bad.describe(source.path))
        if bad is None or may_skip:
            require_writable(original, f"{source.path}:{row.number}")
        if count == max_rows:
            break
    if not count:
        raise DataError(f"{source.path} contains no rows; give a file with some")
    if wrong and not may_skip:
        summary = f"{wrong:,} of the {counted(count, 'row')} cannot be used, the first {len(listed)} are"
        raise DataError(
            *listed,
            summary=summary if wrong > len(listed) else "",
            remedy="correct these rows, or set on_bad_row=skip to leave their predictions empty",
        )
    return count


def bad_row(row: Row | BadRow, source: Originals, problem: Problem) -> BadRow | None:
    """Return what is wrong with a row, or None."""
    if isinstance(row, BadRow):
        return row
    if (wrong := problem(row.values)) is None:
        return None
    role, rule = wrong
    return BadRow.of(row.number, str(source.fields.get(role, role)), row.values.get(role), rule)
