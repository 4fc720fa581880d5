"""Files of rows, streamed: csv, tsv, jsonl, json, parquet, Excel, CoNLL columns, plain lines.

A reader yields `Row` for each usable row and `BadRow` for each one that is not; what to do about the bad ones is the
caller's decision. Memory does not grow with the number of rows, except for one `.json` array, which is read whole, and
for the texts of a workbook.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

from nlu.config.errors import DataError
from nlu.config.nearest import hint, nearest
from nlu.config.words import called, counted
from nlu.data.dialect import PLAIN, SEPARATED_BY, Dialect
from nlu.data.workbook import text_rows

SUFFIX_FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet",
    ".conll": "conll", ".xlsx": "xlsx",
}  # fmt: skip

UNREADABLE = dict.fromkeys((".xls", ".ods", ".numbers"), "is a spreadsheet; export it as xlsx or csv")
UNREADABLE |= dict.fromkeys((".gz", ".zip", ".bz2", ".xz", ".zst"), "is compressed; unpack it")
"""What to do about files of which no format can be read."""
LIST_ROLES = ("tokens", "tags", "spans")
"""Fields that the cell of a table cannot hold."""
TABLES = ("csv", "tsv", "xlsx")
"""formats whose rows are cells, and whose first row may name them"""
BLANKS = re.compile("[ \t]+")
"""What separates CoNLL columns; the wide space of Chinese text is a token like any other."""


@dataclass(slots=True)
class Row:
    """One row and the value of each field; `number` is its line in the file, or its place in a JSON list or parquet
    file, counted from 1."""

    number: int
    values: dict[str, Any]


@dataclass(slots=True)
class BadRow:
    """A row that cannot be used: where, which field, what it holds and the rule it breaks."""

    number: int
    field: str
    value: str
    rule: str
    is_text: bool = True
    """whether the value is a text; what else it may be is written as in JSON, so that 5 does not pass for "5\""""

    @classmethod
    def of(cls, number: int, field: str, value: Any, rule: str) -> Self:
        """A row with a value of any kind."""
        if isinstance(value, str):
            return cls(number, field, value, rule)
        return cls(number, field, json.dumps(value, ensure_ascii=False, default=str), rule, is_text=False)

    def describe(self, path: Path) -> str:
        """Return `file:row: field ...`, the form of every data error."""
        return f"{called(path)}:{self.number}: {self.told}"

    @property
    def told(self) -> str:
        """The field, what it holds and the rule, without the place."""
        shown = self.value if len(self.value) <= 80 else self.value[:77] + "..."
        return f"field {self.field}: {repr(shown) if self.is_text else shown} {self.rule}"


@dataclass(slots=True)
class Mark:
    """A line that marks where a document begins (-DOCSTART-), which is no row."""

    number: int


Fields = dict[str, str | int]
DOCUMENT_MARK = "-DOCSTART-"
GROUP = "group"
"""the role of the column that `folds.group_by` names"""


def key_of(role: str) -> str:
    """Return the configuration key that names a role's column."""
    return "folds.group_by" if role == GROUP else f"data.fields.{role}"


Watch = Callable[[TextIO], Any]
"""what stands in for the lines of a file while they are read"""


def read_rows(
    path: Path,
    file_format: str,
    fields: Fields,
    header: bool | None,
    watch: Watch | None = None,
    dialect: Dialect = PLAIN,
) -> Iterator[Row | BadRow | Mark]:
    """Yield the rows of one file with the values of `fields`, a mapping from role to column name or number.

    `file_format="auto"` goes by the suffix. `header=None` means that a table has a header exactly when a field other
    than the group is given by name. `watch` is given the lines of a file of lines, and what it returns is read in their
    place. Raises DataError where the file's header lacks a named column or the format is not known.
    """
    chosen = format_of(path, file_format)
    if GROUP in fields and chosen in ("lines", "conll"):
        raise DataError(
            f"{path}: folds.group_by is {fields[GROUP]!r}, but data.format={chosen} has no column to group by; "
            "set folds.group_by=null, or give the rows as a table or jsonl"
        )
    if chosen in TABLES and (lists := [role for role in LIST_ROLES if role in fields]):
        read_as = f"{chosen} (by its suffix {path.suffix})" if file_format == "auto" else f"data.format={chosen}"
        raise DataError(
            f"{path}: data.fields names {', '.join(lists)}, but the file is read as {read_as}, a table, of which no "
            "cell holds a list; set data.format=conll where each line is a token and its tag, or give the rows as jsonl"
        )
    return READERS[chosen](path, fields, has_header(fields, header), watch or iter, dialect)


def format_of(path: Path, file_format: str) -> str:
    """Return the format in which a file is read. Raises DataError where its suffix tells none."""
    chosen = SUFFIX_FORMATS.get(path.suffix.lower()) if file_format == "auto" else file_format
    if chosen is None and (reason := UNREADABLE.get(path.suffix.lower())):
        raise DataError(f"{path}: {reason}, and name the new file instead")
    if chosen is None:
        raise DataError(
            f"{path}: the suffix {path.suffix!r} tells no format; set data.format to one of {', '.join(READERS)}"
        )
    return chosen


def has_header(fields: Fields, header: bool | None) -> bool:
    """Whether the first row of a table names its columns: as set, else where a field other than the group is given by
    name."""
    if header is not None:
        return header
    return any(isinstance(column, str) for role, column in fields.items() if role != GROUP)


def column_names(path: Path, file_format: str, dialect: Dialect = PLAIN) -> list[str]:
    """Return the names of a file's columns: a table's first row, a parquet file's schema, the keys of the first record.

    Columns of a format without names (conll, lines) and of an empty file are none.
    """
    chosen = format_of(path, file_format)
    if chosen == "parquet":
        return list(_parquet(path).schema_arrow.names)
    if chosen == "xlsx":
        return next((cells for _, cells in text_rows(path)), [])
    if chosen in SEPARATED_BY:
        with open(path, encoding="utf-8-sig", newline="\n" if chosen == "tsv" else "") as lines:
            return next((cells for _, cells in dialect.cells(chosen, path, lines)), [])
    if chosen in ("jsonl", "json"):
        return next((list(record) for _, record in _records(path, chosen) if isinstance(record, dict)), [])
    return []


def _read_text_table(
    kind: str, path: Path, fields: Fields, header: bool, watch: Watch, dialect: Dialect
) -> Iterator[Row | BadRow]:
    with open(path, encoding="utf-8-sig", newline="\n" if kind == "tsv" else "") as lines:
        yield from _table(path, dialect.cells(kind, path, watch(lines)), fields, header, kind, dialect)


def _read_xlsx(path: Path, fields: Fields, header: bool, watch: Watch, dialect: Dialect) -> Iterator[Row | BadRow]:
    yield from _table(path, text_rows(path), fields, header)


def _table(
    path: Path,
    numbered: Iterator[tuple[int, list[str]]],
    fields: Fields,
    header: bool,
    kind: str = "xlsx",
    dialect: Dialect = PLAIN,
) -> Iterator[Row | BadRow]:
    width = None
    columns: dict[str, int] = {}
    for number, cells in numbered:
        if width is None:
            width = len(cells)
            columns = _columns(path, fields, cells, header, kind, dialect)
            if header:
                continue
        if len(cells) != width:
            rule = f"makes {counted(len(cells), 'column')} where the first row of the file has {width}"
            yield BadRow(number, "(row)", "\t".join(cells), rule)
            continue
        yield Row(number, {role: cells[index] for role, index in columns.items()})


def _columns(path: Path, fields: Fields, first: list[str], header: bool, kind: str, dialect: Dialect) -> dict[str, int]:
    columns = {}
    other_separator = dialect.remedy(first, kind)
    for role, column in fields.items():
        if isinstance(column, int):
            if column >= len(first):
                raise DataError(
                    f"{path}:1: {key_of(role)} is column {column}, counted from 0, but the row has "
                    f"{counted(len(first), 'column')}; "
                    f"{other_separator or f'set {key_of(role)} to a number below {len(first)}'}"
                )
            columns[role] = column
        elif not header:
            raise DataError(
                f"{path}:1: {key_of(role)} is {column!r}, but the file is read without a header; "
                f"set {key_of(role)} to a column number counted from 0, or data.header=true"
            )
        elif column not in first:
            shown = [cell if len(cell) <= 40 else f"{cell[:37]}..." for cell in first]
            close = f"nearest: {', '.join(near)}; " if (near := nearest(column, shown)) else ""
            remedy = other_separator or (
                f"{close}set {key_of(role)} to one of these or, where this "
                "row is no header, set data.header=false and columns by number, counted from 0"
            )
            raise DataError(f"{path}:1: {key_of(role)} is {column!r}, but the header has {shown}; {remedy}")
        elif first.count(column) > 1:
            places = ", ".join(str(place) for place, cell in enumerate(first) if cell == column)
            raise DataError(
                f"{path}:1: {key_of(role)} is {column!r}, but the header has it {first.count(column)} times, as "
                f"columns {places}, counted from 0; set {key_of(role)} to one of these numbers and data.header=true"
            )
        else:
            columns[role] = first.index(column)
    return columns


def _read_json(
    kind: str, path: Path, fields: Fields, header: bool, watch: Watch, dialect: Dialect
) -> Iterator[Row | BadRow]:
    for number, record in _records(path, kind, watch):
        yield record if isinstance(record, BadRow) else _record(number, record, fields)


def _records(path: Path, kind: str, watch: Watch = iter) -> Iterator[tuple[int, Any]]:
    """Yield what each line of a file holds, or each item of the list that a `.json` file may be; or a BadRow."""
    if kind == "json" and is_json_list(path):
        yield from enumerate(json_items(path), 1)
        return
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        for number, line in _lines(watch(lines)):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, BadRow(number, "(row)", line.strip(), f"is not a JSON object: {_said(error)}")


def is_json_list(path: Path) -> bool:
    """Whether a file holds one list, and not an object a line."""
    with open(path, encoding="utf-8-sig") as file:
        return file.read(4096).lstrip().startswith("[")


def json_items(path: Path) -> Any:
    """Return the list that a .json file is. Raises DataError where it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise DataError(f"{path}:{line}: not a JSON list: {_said(error)}; mend the file") from None


def _said(error: Exception) -> str:
    """What is wrong with a text that is no JSON, or nests deeper or holds longer numbers than can be read."""
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _read_parquet(path: Path, fields: Fields, header: bool, watch: Watch, dialect: Dialect) -> Iterator[Row | BadRow]:
    file = _parquet(path)
    names = file.schema_arrow.names
    if absent := [column for column in fields.values() if column not in names and column not in range(len(names))]:
        keys = ", ".join(key_of(role) for role, column in fields.items() if column in absent)
        raise DataError(
            f"{path}: no column {absent}; the file has {names}; {hint(str(absent[0]), names)}; set {keys} to these or "
            "their numbers"
        )
    wanted = {role: names[column] if isinstance(column, int) else column for role, column in fields.items()}
    number = 0
    for batch in file.iter_batches(batch_size=8192, columns=list(dict.fromkeys(wanted.values()))):
        for record in batch.to_pylist():
            number += 1
            yield _record(number, record, wanted)


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a parquet file ({error}); set data.format") from None


def _record(number: int, record: Any, fields: Fields) -> Row | BadRow:
    if not isinstance(record, dict):
        return BadRow.of(number, "(row)", record, "is not an object with named fields")
    values = {}
    for role, name in fields.items():
        if name not in record and role not in ("label", "spans"):
            nearest = f" of folds.group_by; {hint(str(name), map(str, record))}" if role == GROUP else ""
            rule = f"lacks this field{nearest}"
            return BadRow(number, str(name), json.dumps(record, ensure_ascii=False), rule)
        values[role] = record.get(str(name))
    return Row(number, values)


def _read_lines(path: Path, fields: Fields, header: bool, watch: Watch, dialect: Dialect) -> Iterator[Row | BadRow]:
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        for number, line in _lines(watch(lines)):
            if line.strip():
                yield Row(number, {"text": line.rstrip("\r\n")})


def _read_conll(
    path: Path, fields: Fields, header: bool, watch: Watch, dialect: Dialect
) -> Iterator[Row | BadRow | Mark]:
    """Sentences of `token ... tag` lines, ended by an empty line; `fields` gives the two columns by number."""
    wanted = [column for role in ("tokens", "tags") if isinstance(column := fields.get(role), int)]
    if "tokens" not in fields or len(wanted) != 1 + ("tags" in fields):
        raise DataError(
            f"{path}: data.fields is {fields}, but the fields of CoNLL columns are tokens and tags, numbered from 0; "
            "set e.g. {tokens: 0, tags: 1}, or data.format"
        )
    tokens: list[str] = []
    tags: list[str] = []
    first = 1
    bad: BadRow | None = None
    with open(path, encoding="utf-8-sig", newline="\n") as lines:
        for number, line in _lines(watch(lines), end_with=""):
            line = line.strip(" \t\r\n")
            cells = BLANKS.split(line)
            is_mark = cells[0] == DOCUMENT_MARK
            if not line or is_mark:
                if bad or tokens:
                    yield bad or Row(first, {"tokens": tokens, "tags": tags if "tags" in fields else None})
                if is_mark:
                    yield Mark(number)
                tokens, tags, first, bad = [], [], number + 1, None
            elif max(wanted) >= len(cells):
                bad = bad or BadRow(
                    number, "(row)", line, f"has {counted(len(cells), 'column')}, not {max(wanted) + 1}"
                )
            else:
                tokens.append(cells[wanted[0]])
                tags.append(cells[wanted[-1]])


def _lines(lines: Any, end_with: str | None = None) -> Iterator[tuple[int, str]]:
    number = 0
    for number, line in enumerate(lines, 1):
        yield number, line
    if end_with is not None:
        yield number + 1, end_with


READERS: dict[str, Callable[[Path, Fields, bool, Watch, Dialect], Iterator[Any]]] = {
    "tsv": partial(_read_text_table, "tsv"), "csv": partial(_read_text_table, "csv"),
    "jsonl": partial(_read_json, "jsonl"), "json": partial(_read_json, "json"),
    "parquet": _read_parquet, "lines": _read_lines, "conll": _read_conll, "xlsx": _read_xlsx,
}  # fmt: skip
