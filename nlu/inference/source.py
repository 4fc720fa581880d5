"""Rows to predict, of a program or a client or in a file, and a report of those that cannot be used."""

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.inference import STANDARD, Input
from nlu.config.nearest import nearest
from nlu.config.targets import build
from nlu.config.words import counted, show_as
from nlu.data.building import LISTED_BAD_ROWS
from nlu.data.dataset import Files
from nlu.data.dialect import KEYS, OWN, PLAIN, Dialect, not_utf_8
from nlu.data.fields import SUFFIX_FORMATS, usual_fields
from nlu.data.labels import applies
from nlu.data.layouts import Values
from nlu.data.originals import Original, Originals
from nlu.data.reader import BadRow
from nlu.data.reader import Row as RowOfFile
from nlu.data.readers import Fields, column_names, format_of, header_remedy
from nlu.inference.trained import Trained
from nlu.storage.places import plain_name

log = logging.getLogger(__name__)

Row = str | Sequence[str] | Mapping[str, object]
"""a text; a pair of texts or a list of tokens, depending on the run; or a mapping, by roles or by the names of the
run's own columns, whose other fields are ignored"""


def values_of(trained: Trained, row: object, place: str, others: Iterable[str] = ()) -> Values:
    """Return the texts of a row by role, and the values of those roles in `others` that it has.

    `place` names the row in errors. Raises DataError if a text that the run reads is missing or cannot be used.
    """
    values = _by_role(trained, row, place)
    require_none(trained.problem(values), values, place)
    if isinstance(row, Mapping):
        for role, name in _names_of(trained, others).items():
            if (known := next((one for one in (name, role) if one in row), None)) is not None:
                values[role] = row[known]
        columns = (trained.config.data.get("fields") or {}).get("label")
        if isinstance(columns, list) and "label" in others and all(name in row for name in columns):
            wrong = next((name for name in columns if applies(row[name]) is None), None)
            require_none(None if wrong is None else (wrong, "is neither 0 nor 1"), dict(row), place)
            values["label"] = [name for name in columns if applies(row[name])]
    return values


def require_none(problem: tuple[str, str] | None, values: Values, place: str) -> None:
    """Raise DataError for a problem of a row: the field that cannot be used, and the rule that its value breaks."""
    if problem is not None:
        role, rule = problem
        raise DataError(f"{place}: {BadRow.of(0, role, values.get(role), rule).sentence}")


def alternatives_of(trained: Trained) -> tuple[tuple[str, ...], ...]:
    """Return the alternative sets of roles of the texts that a run reads; a row needs all roles of one of them."""
    return trained.layout.alternatives


def _by_role(trained: Trained, row: object, place: str) -> dict[str, object]:
    alternatives = alternatives_of(trained)
    if isinstance(row, Mapping):
        return _of_fields(trained, row, place)
    if isinstance(row, str) and ("text",) in alternatives:
        return {"text": row}
    if isinstance(row, list | tuple):
        if ("tokens",) in alternatives:
            return {"tokens": list(row)}
        if len(row) == len(alternatives[0]) == 2:
            return dict(zip(alternatives[0], row, strict=True))
    raise DataError(f"{place} is {_kind(row)}, but the run reads {either(alternatives)}; give it these")


def _of_fields(trained: Trained, row: Mapping[object, object], place: str) -> dict[str, object]:
    alternatives = alternatives_of(trained)
    # As in nlu.predict, the run's own column names come before the names of roles.
    found = [
        {role: row[name] for role, name in names.items()}
        for roles in alternatives
        for names in (_names_of(trained, roles), {role: role for role in roles})
        if all(name in row for name in names.values())
    ]
    if found:
        # The run's column of tokens may have the name of another role, `text`.
        return next((values for values in found if all(map(_fits, values, values.values()))), found[0])
    there = [f"{name!s:.40}" for name in islice(row, 8)]
    absent = next(role for role in alternatives[0] if role not in row)
    raise DataError(
        f"{place} lacks {absent}; it has {', '.join(there) or 'nothing'}, and the run reads "
        f"{either(alternatives)}; give it these"
    )


def _fits(role: str, value: object) -> bool:
    return isinstance(value, list | tuple) if role == "tokens" else isinstance(value, str)


def _names_of(trained: Trained, roles: Iterable[str]) -> dict[str, str]:
    """Return the names of these roles in the run's own rows; a column that is given by its number has none."""
    fields = trained.config.data.get("fields") or {}
    return {role: name if isinstance(name := fields.get(role, role), str) else role for role in roles}


def either(alternatives: Sequence[Sequence[str]]) -> str:
    """Return alternatives of roles in words."""
    return " or ".join(" and ".join(roles) for roles in alternatives)


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "one text"
    return f"a list of {len(row)}" if isinstance(row, list | tuple) else f"{row!r:.40}"


Problem = Callable[[Values], tuple[str, str] | None]
"""returns the field of a row that cannot be used, and the rule that its value breaks, or None"""


@contextmanager
def found(path: str, file_format: str, key: str = "input") -> Iterator[Path]:
    """Yield the file that `input`, or another key, names; standard input is copied to a file first.

    Raises UserError if the format of standard input is not given.
    """
    if path != STANDARD:
        yield Files(train=path).find(key, path)
        return
    if file_format == "auto":
        remedy = "set input.format, such as input.format=lines" if key == "input" else "give a file"
        raise UserError(f"{key} is -, standard input, which has no suffix; {remedy}")
    folder = Path(tempfile.mkdtemp(prefix="nlu-input-"))
    try:
        copy = folder / "stdin"
        show_as(copy, "standard input")
        # Every row is read twice, to be checked and to be predicted, and a pipe can be read only once.
        with open(copy, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield copy
    finally:
        # The predictions are already written, so a copy that cannot be removed must not fail the command.
        try:
            shutil.rmtree(folder)
        except OSError as error:
            log.warning("%s, a copy of standard input, cannot be removed: %s", folder, error.strerror or error)


def originals_for(trained: Trained, asked: Input, path: Path) -> Originals:
    """Return the rows of a file, read as `input` demands, and otherwise as the run read its own files.

    Raises DataError if the file lacks a column for a text that the run reads.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    data = trained.config.data
    file_format: str = asked.format
    own = data.get("train")
    if file_format == "auto" and isinstance(own, str) and Path(plain_name(own)).suffix == path.suffix:
        file_format = data["format"]
    reader = None
    if asked.format == "auto" and (node := data.get("reader")) is not None and _is_own(path, own):
        file_format, reader = OWN, build(node, trusted=trained.config.trusted_packages)
    file_format = format_of(path, file_format)
    given = {key: value for key in KEYS if (value := getattr(asked, key)) is not None}
    dialect = replace(_dialect(data, file_format), **given, reader=reader)
    fields = _fields(trained, asked, path, file_format, dialect)
    # Columns that are numbers, as in training, say nothing about the first row, so the setting of training decides.
    header = asked.header
    if header is None and not asked.fields and all(isinstance(column, int) for column in fields.values()):
        header = data["header"]
    return Originals(path, file_format, fields, header, dialect)


def _is_own(path: Path, own: object) -> bool:
    """Return whether the reader of the run's own files reads this one: it has their suffix, or no known one."""
    names = [plain_name(one) for one in (own if isinstance(own, list) else [own]) if isinstance(one, str)]
    suffixes = {Path(one).suffix for one in names}
    return path.suffix in suffixes or path.suffix.lower() not in SUFFIX_FORMATS


def _dialect(data: Mapping[str, Any], file_format: str) -> Dialect:
    """Return the dialect of a file: that of the run's own files if both have the same format."""
    dialect, own = Dialect.of(data), data.get("train")
    if dialect == PLAIN:
        # The rows of the run may come from a table of MaxCompute, which lacks a dialect.
        return PLAIN
    own_format = format_of(Path(own), data["format"]) if isinstance(own, str) else data["format"]
    return dialect if file_format == own_format else PLAIN


def _fields(trained: Trained, asked: Input, path: Path, file_format: str, dialect: Dialect) -> Fields:
    alternatives = alternatives_of(trained)
    if file_format == "lines":
        if ("text",) not in alternatives:
            raise DataError(f"{path}: each line is one text, but the run reads {either(alternatives)}; give a table")
        return {}
    if asked.fields:
        return _given(asked.fields, alternatives)
    trained_on: Fields = trained.config.data.get("fields") or {}
    try:
        names = column_names(path, file_format, dialect)
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None
    for roles in alternatives:
        # In this order: the columns of training, columns that are named like the roles, and names that are common for
        # them.
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
    roles = alternatives[0]
    wanted = {role: trained_on.get(role, role) for role in roles}
    absent = [str(column) for column in wanted.values() if not _is_there(column, names)]
    close = ", ".join(nearest(absent[0], names))

    def is_header(cells: list[str]) -> bool:
        return all(_is_there(column, cells) for column in wanted.values())

    title = header_remedy(path, file_format, is_header, dialect)
    raise DataError(
        f"{path}: the column {absent[0]}, which the run reads, is missing; the file has {names[:12]}"
        f"{f'; nearest: {close}' if close else ''}{f'; {title}' if title else ''}; set input.fields to e.g. "
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
    # Some bad rows are listed and all are counted, so a file with a million of them gives a short message with the
    # right number.
    listed: list[str] = []
    for row, original in source.rows():
        count += 1
        if (bad := bad_row(row, source, problem)) is not None:
            wrong += 1
            if len(listed) < LISTED_BAD_ROWS:
                listed.append(bad.describe(source.path))
        if bad is None or may_skip:
            require_writable(original, f"{source.path}:{row.number}")
        # Before the next row is read: a bad row behind max_rows does not matter.
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


def bad_row(row: RowOfFile | BadRow, source: Originals, problem: Problem) -> BadRow | None:
    """Return what is wrong with a row, or None."""
    if isinstance(row, BadRow):
        return row
    if (wrong := problem(row.values)) is None:
        return None
    role, rule = wrong
    return BadRow.of(row.number, str(source.fields.get(role, role)), row.values.get(role), rule)
