"""Rows to predict, of a program or a client or in a file, and a report of those that cannot be used.

For a file it is decided which columns hold the texts that a run reads, and whether its first row names them.
"""

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from nlu.config.command_keys import STANDARD, Input
from nlu.config.errors import DataError, UserError
from nlu.config.nearest import nearest
from nlu.config.sentences import counted, shortened, show_as
from nlu.config.targets import build
from nlu.config.types import ConfigLike
from nlu.data.dataset import find_file
from nlu.data.dialect import KEYS, OWN, PLAIN, Dialect, not_utf_8
from nlu.data.fields import NAMES_OF_TEXTS, ROLES, SUFFIX_FORMATS, USUAL_LABELS, USUAL_OF_TAGGING, usual_fields
from nlu.data.layouts import Layout, Values
from nlu.data.lists_in_cells import applies
from nlu.data.originals import Original, Originals
from nlu.data.reader import BadRow, BadRows
from nlu.data.reader import Row as RowOfFile
from nlu.data.readers import TABLES, Fields, column_names, format_of, header_remedy, read_rows
from nlu.data.reading import HEADER_WORDS, SAMPLED_ROWS
from nlu.data.targets.classes import NUMBER
from nlu.inference.ranking import ROLES as OF_CANDIDATES
from nlu.inference.ranking import reads_candidates
from nlu.storage.locations import plain_name

log = logging.getLogger(__name__)

Row = str | Sequence[str] | Mapping[str, object]
"""a text; a pair of texts or a list of tokens, depending on the run; or a mapping, by roles or by the names of the
run's own columns, whose other fields are ignored"""

LONGEST_TOKEN = 30
"""characters of a token; a row of one longer token is a text"""
Problem = Callable[[Values], tuple[str, str] | None]
"""returns the field of a row that cannot be used, and the rule that its value breaks, or None"""
NAMES_OF_NUMBERS = frozenset("id qid uid guid idx index 编号 序号".split())
OTHERS = NAMES_OF_NUMBERS | HEADER_WORDS | {name.lower() for name in USUAL_LABELS}
"""names of columns that hold no text"""
TITLES = OTHERS.union(NAMES_OF_TEXTS, ROLES, USUAL_OF_TAGGING["tokens"])


class Reads(Protocol):
    """What reads rows: a trained run, or pretrained weights."""

    @property
    def layout(self) -> Layout:
        """How a row becomes sequences."""

    @property
    def data(self) -> ConfigLike:
        """The keys of data sets with which its own rows were read."""

    def problem(self, values: Values) -> tuple[str, str] | None:
        """Return the field of a row that cannot be read, and the rule that its value breaks, or None."""


def values_of(trained: Reads, row: object, place: str, others: Iterable[str] = ()) -> Values:
    """Return the texts of a row by role, and the values of those roles in `others` that it has.

    `place` names the row in errors. Raises DataError if a text that the run reads is missing or cannot be used.
    """
    values = _by_role(trained, row, place)
    require_none(trained.problem(values), values, place)
    if isinstance(row, Mapping):
        for role, name in _names_of(trained, others).items():
            if (known := next((one for one in (name, role) if one in row), None)) is not None:
                values[role] = row[known]
        columns = (trained.data.get("fields") or {}).get("label")
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


def alternatives_of(trained: Reads) -> tuple[tuple[str, ...], ...]:
    """Return the alternative sets of roles of the texts that a run reads; a row needs all roles of one of them."""
    return trained.layout.alternatives


def _by_role(trained: Reads, row: object, place: str) -> dict[str, object]:
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


def _of_fields(trained: Reads, row: Mapping[object, object], place: str) -> dict[str, object]:
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


def _names_of(trained: Reads, roles: Iterable[str]) -> dict[str, str]:
    """Return the names of these roles in the run's own rows; a column that is given by its number has none."""
    fields = trained.data.get("fields") or {}
    return {role: name if isinstance(name := fields.get(role, role), str) else role for role in roles}


def either(alternatives: Sequence[Sequence[str]]) -> str:
    """Return alternatives of roles in words."""
    return " or ".join(" and ".join(roles) for roles in alternatives)


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "one text"
    return f"a list of {len(row)}" if isinstance(row, list | tuple) else f"{row!r:.40}"


@contextmanager
def found(path: str, file_format: str, key: str = "input") -> Iterator[Path]:
    """Yield the file that `input`, or another key, names; standard input is copied to a file first.

    Raises UserError if the format of standard input is not given.
    """
    if path != STANDARD:
        yield find_file(key, path)
        return
    if file_format == "auto":
        remedy = "set input.format, such as input.format=lines" if key == "input" else "give a file"
        raise UserError(f"{key} is -, standard input, which has no suffix; {remedy}")
    # The predictions are already written when it is removed, so a copy that stays must not fail the command.
    with tempfile.TemporaryDirectory(prefix="nlu-input-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "stdin"
        show_as(copy, "standard input")
        # Every row is read twice, to be checked and to be predicted, and a pipe can be read only once.
        with open(copy, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield copy


def require_usable(
    source: Originals,
    problem: Problem,
    require_writable: Callable[[Original, str], None],
    *,
    may_skip: bool,
    max_rows: int | None,
    rows: Iterable[tuple[RowOfFile | BadRow, Original]] | None = None,
) -> int:
    """Read every row once and return the number of rows; `rows` are those of the source, if something else notes them.

    Raises DataError for rows that cannot be used, unless `may_skip`, for a row that the output cannot hold, and for a
    file without rows.
    """
    count, bad_rows = 0, BadRows()
    several, longest = "tokens" not in source.fields, ""
    for row, original in source.rows() if rows is None else rows:
        count += 1
        if (bad := bad_row(row, source, problem)) is not None:
            bad_rows.add(source.path, bad)
        elif not several and isinstance(row, RowOfFile):
            longest, several = max(longest, row.values["tokens"][0], key=len), len(row.values["tokens"]) > 1
        if bad is None or may_skip:
            require_writable(original, f"{source.path}:{row.number}")
        # Before the next row is read: a bad row behind max_rows does not matter.
        if count == max_rows:
            break
    if not count:
        raise DataError(f"{source.path} contains no rows; give a file with some")
    if bad_rows.count and not may_skip:
        remedy = "correct these rows, or set on_bad_row=skip to leave their predictions empty"
        raise bad_rows.error(counted(count, "row"), remedy)
    if not several and len(longest) > LONGEST_TOKEN:
        raise DataError(
            f"{source.path}: each row is read as one token, such as {shortened(longest)!r}, but the run was trained on "
            f"lists of tokens; set 'input.fields={{text: {source.fields['tokens']}}}' for texts"
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


def originals_for(trained: Reads, asked: Input, path: Path) -> Originals:
    """Return the rows of a file, read as `input` demands, and otherwise as the run read its own files.

    Raises DataError if the file lacks a column for a text that the run reads, or seems to name its columns although
    those of the run are numbers.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    data = trained.data
    file_format: str = asked.format
    own = data.get("train")
    if file_format == "auto" and isinstance(own, str) and Path(plain_name(own)).suffix == path.suffix:
        file_format = data["format"]
    reader = None
    if asked.format == "auto" and (node := data.get("reader")) is not None and _is_own(path, own):
        file_format, reader = OWN, build(node)
    file_format = format_of(path, file_format)
    given = {key: value for key in KEYS if (value := getattr(asked, key)) is not None}
    dialect = replace(_dialect(data, file_format), **given, reader=reader)
    if file_format == "lines":
        if ("text",) not in alternatives_of(trained):
            either_of = either(alternatives_of(trained))
            raise DataError(f"{path}: each line is one text, but the run reads {either_of}; give a table")
        return Originals(path, file_format, {}, asked.header, dialect)
    if asked.fields:
        return Originals(path, file_format, _given(asked.fields, trained), asked.header, dialect)
    fields = _fields(trained, path, file_format, dialect)
    header = asked.header
    numbered = {role: column for role, column in fields.items() if isinstance(column, int)}
    if header is None and len(numbered) == len(fields):
        # Columns that are numbers say nothing about the first row, so the setting of training decides.
        header = data["header"]
        if file_format in TABLES and (named := _named(trained, numbered, path, file_format, dialect)) is not None:
            fields, header = named, True
    return Originals(path, file_format, fields, header, dialect)


def _is_own(path: Path, own: object) -> bool:
    """Return whether the reader of the run's own files reads this one: it has their suffix, or no known one."""
    names = [plain_name(one) for one in (own if isinstance(own, list) else [own]) if isinstance(one, str)]
    suffixes = {Path(one).suffix for one in names}
    return path.suffix in suffixes or path.suffix.lower() not in SUFFIX_FORMATS


def _dialect(data: ConfigLike, file_format: str) -> Dialect:
    """Return the dialect of a file: that of the run's own files if both have the same format."""
    dialect = Dialect.of(data)
    if dialect == PLAIN:
        # The rows of the run may come from a table of MaxCompute, which lacks a dialect.
        return PLAIN
    return dialect if file_format == _own_format(data) else PLAIN


def _own_format(data: ConfigLike) -> str:
    if data.get("reader") is not None:
        return OWN
    own: object = data.get("train")
    own_format: str = format_of(Path(own), data["format"]) if isinstance(own, str) else data["format"]
    return own_format


def _fields(trained: Reads, path: Path, file_format: str, dialect: Dialect) -> Fields:
    alternatives = _in_files(trained)
    trained_on: Fields = trained.data.get("fields") or {}
    try:
        names = column_names(path, file_format, dialect)
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None

    # A number means a column of the run's own tables, whose order fields by name need not have.
    may_count = file_format in TABLES or file_format == _own_format(trained.data) == "parquet"

    def is_there(column: str | int | list[str], cells: list[str]) -> bool:
        return may_count and column < len(cells) if isinstance(column, int) else column in cells

    for roles in alternatives:
        # In this order: the columns of training, columns that are named like the roles, and names that are common for
        # them.
        candidates: list[Fields] = [
            {role: trained_on.get(role, role) for role in roles},
            {role: role for role in roles},
            _by_name(names, roles, _numbers(trained)),
        ]
        for fields in candidates:
            if (
                file_format == "conll"
                or set(fields) == set(roles)
                and all(is_there(column, names) for column in fields.values())
            ):
                return fields
    roles = alternatives[0]
    wanted = {role: trained_on.get(role, role) for role in roles}
    if not may_count and _numbers(trained):
        raise DataError(
            f"{path}: the run was trained on columns by number, {wanted}, but the fields of this file have names, "
            f"{names[:12]}; set {_line(roles, names)}"
        )
    absent = [str(column) for column in wanted.values() if not is_there(column, names)]
    close = ", ".join(nearest(absent[0], names))
    title = header_remedy(
        path, file_format, lambda cells: all(is_there(column, cells) for column in wanted.values()), dialect
    )
    raise DataError(
        f"{path}: the column {absent[0]}, which the run reads, is missing; the file has {names[:12]}"
        f"{f'; nearest: {close}' if close else ''}{f'; {title}' if title else ''}; set input.fields to e.g. "
        f"{{{', '.join(f'{role}: COLUMN' for role in roles)}}}"
    )


def _numbers(trained: Reads) -> bool:
    """Return whether the run was trained on columns by number."""
    return any(isinstance(column, int) for column in (trained.data.get("fields") or {}).values())


def _by_name(names: Sequence[str], roles: Sequence[str], is_numbered: bool) -> Fields:
    """Return the columns with common names for these roles; for a run without names of its own, the only one that may
    hold its text."""
    found: Fields = {role: name for role, name in usual_fields(names, roles).items() if role in roles}
    if list(roles) == ["tokens"]:
        # A column with the name of a text holds texts, which such a run reads too.
        usual = [name for name in names if name.lower() in USUAL_OF_TAGGING["tokens"]]
        return found or ({"tokens": usual[0]} if usual else {})
    if not found and is_numbered and len(roles) == 1:
        likely = [name for name in names if name.lower() in NAMES_OF_TEXTS] or list(names)
        found = {roles[0]: likely[0]} if len(likely) == 1 else {}
    return found


def _in_files(trained: Reads) -> tuple[tuple[str, ...], ...]:
    """Return `alternatives_of`, and that of a file with a list of candidates in each row."""
    return (*alternatives_of(trained), *([OF_CANDIDATES] if reads_candidates(trained) else []))


def _given(fields: Fields, trained: Reads) -> Fields:
    alternatives = _in_files(trained)
    for roles in alternatives:
        if set(roles) <= set(fields):
            return {role: fields[role] for role in roles}
    raise UserError(f"input.fields is {fields}, but the run reads {either(alternatives)}; set input.fields to these")


def _named(
    trained: Reads, numbered: Mapping[str, int], path: Path, file_format: str, dialect: Dialect
) -> Fields | None:
    """Return the columns of a table by name if its first row names them, although those of the run are numbers; None if
    the numbers are right.

    Raises DataError with the argument to add if the first row seems to name columns, but not those of the texts.
    """
    names, header = column_names(path, file_format, dialect), trained.data["header"]
    whole: Fields = {str(number): number for number in range(len(names))}
    rows = (row for row in read_rows(path, file_format, whole, False, dialect=dialect) if isinstance(row, RowOfFile))
    cells = [[str(row.values[name]).strip() for name in whole] for row in islice(rows, SAMPLED_ROWS)]
    # With a header the columns may have another order than those of training, which only their names can show.
    is_other = any(names[column].lower() in OTHERS for column in numbered.values())
    if not (is_other if header else _is_header(cells)):
        return None
    by_name = _by_name(names, list(numbered), True)
    if "tokens" in numbered and not by_name:
        by_name = _by_name(names, ["text"], True)
    if by_name and (set(by_name) == set(numbered) or "text" in by_name):
        log.info("%s: the first row names the columns; the run reads %s", path, ", ".join(map(str, by_name.values())))
        return by_name
    columns = zip(names, map(list, zip(*cells[1:], strict=True)), strict=False)
    texts = [name for name, column in columns if not all(map(NUMBER.fullmatch, column))]
    as_row = "" if header else ", or input.header=false if it is a row"
    raise DataError(
        f"{path}:{1 + dialect.skip_lines}: the first row seems to name the columns, {names[:12]}, but the run was "
        f"trained on columns by number, {dict(numbered)}; set {_line(list(numbered), texts)}{as_row}"
    )


def _is_header(rows: list[list[str]]) -> bool:
    """Return whether the first row of a table has a usual name of a column, or a word where all others have numbers.

    What occurs again in its column is no name.
    """
    for first, *others in map(list, zip(*rows, strict=True)):
        if first.lower() in TITLES and first not in others:
            return True
        if first and others and not NUMBER.fullmatch(first) and all(map(NUMBER.fullmatch, others)):
            return True
    return False


def _line(roles: Sequence[str], names: Sequence[str]) -> str:
    """Return the argument that names the columns of texts, as far as they can be told."""
    left = [name for name in names if name.lower() not in OTHERS]
    columns = left if len(left) == len(roles) else ["COLUMN"] * len(roles)
    return f"'input.fields={{{', '.join(f'{role}: {name}' for role, name in zip(roles, columns, strict=True))}}}'"
