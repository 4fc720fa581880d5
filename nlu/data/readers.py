"""Files of rows, streamed: csv, tsv, jsonl, json, parquet, Excel, CoNLL columns, plain lines.

A reader yields a `Row` for each usable row and a `BadRow` for each other one; the caller decides what to do about bad
rows. Memory does not grow with the number of rows, except for a JSON document, which is read as a whole, and the texts
of a workbook.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from nlu.config.errors import DataError
from nlu.config.nearest import hint, nearest
from nlu.config.sentences import counted, shortened
from nlu.data.conll import Columns, sentences
from nlu.data.dialect import OWN, PLAIN, SEPARATED_BY, Dialect, require_utf_8
from nlu.data.fields import SENTENCE, SUFFIX_FORMATS
from nlu.data.json_files import ABSENT, document_records, field_of, is_document, reason_of
from nlu.data.lists_in_cells import applies, is_single, plain_labels, read_lists, sentence_column
from nlu.data.lists_in_cells import sentences as sentences_of_rows
from nlu.data.reader import WHOLE_ROW, BadRow, Mark, Row
from nlu.data.workbook import text_rows
from nlu.storage.locations import plain_name

SAMPLED_ROWS = 1000
"""rows of a table that tell whether each has one token"""
HEADER_ROWS = 10
"""rows below the first one among which a header is looked for"""
OPTIONAL_ROLES = ("label", "spans", "logits", "probabilities", "negatives")
"""fields that a JSON record or a parquet row may lack; what reads them says what is missing"""
TABLES = ("csv", "tsv", "xlsx")
"""formats whose rows are cells, and whose first row may be a header"""
Fields = dict[str, Any]
"""the column of each field, by name or number; of a label or of negatives that are given by several columns, the
list of them"""
WIDTH = "width"
"""in the place of a role: the number of cells of a row that has more or fewer than the first one"""
GROUP = "group"
"""the role of the column that `folds.group_by` names"""


def key_of(role: str) -> str:
    """Return the configuration key that names a role's column."""
    return "folds.group_by" if role == GROUP else f"data.fields.{role.partition('.')[0]}"


Watch = Callable[[Iterator[str]], Iterable[str]]
"""replaces the lines of a text file while they are read"""


@dataclass(frozen=True)
class _File:
    """A file to be read, and how."""

    path: Path
    kind: str
    """its format, never auto"""
    fields: Fields
    header: bool
    watch: Watch
    dialect: Dialect


def read_rows(
    path: Path,
    file_format: str,
    fields: Fields,
    header: bool | None,
    watch: Watch | None = None,
    dialect: Dialect = PLAIN,
) -> Iterator[Row | BadRow | Mark]:
    """Yield the rows of one file with the values of `fields`, a mapping from role to column name or number.

    `file_format="auto"` uses the suffix. With `header=None` a table has a header exactly if a field other than the
    group is given by name. `watch` receives the open text file and returns the lines that are read. Raises DataError if
    the format is unknown or a column is missing.
    """
    for role, joined in (("label", _with_labels), ("negatives", _with_negatives)):
        if isinstance(columns := fields.get(role), list):
            apart = {f"{role}.{place}": column for place, column in enumerate(columns)}
            # Each column is looked up as a field of its own.
            others = {name: column for name, column in fields.items() if name != role}
            rows = read_rows(path, file_format, others | apart, header, watch, dialect)
            return (joined(row, columns) if isinstance(row, Row) else row for row in rows)
    chosen = format_of(path, file_format)
    return (_read_own if chosen == OWN else READERS[chosen])(
        _File(path, chosen, fields, has_header(fields, header), watch or iter, dialect)
    )


def _with_labels(row: Row, columns: list[str | int]) -> Row | BadRow:
    """Return a row whose label is the list of the columns that apply to it."""
    labels = []
    for place, column in enumerate(columns):
        cell = row.values.pop(f"label.{place}")
        if (is_label := applies(cell)) is None:
            rule = "is neither 0 nor 1, as in a column for each label (data.fields.label is a list)"
            return BadRow.of(row.number, str(column), cell, rule)
        if is_label:
            labels.append(str(column))
    row.values["label"] = labels
    return row


def _with_negatives(row: Row, columns: list[str | int]) -> Row:
    """Return a row whose negatives are the list of the texts of several columns."""
    row.values["negatives"] = [row.values.pop(f"negatives.{place}") for place in range(len(columns))]
    return row


def format_of(path: Path, file_format: str) -> str:
    """Return the format of a file, by its suffix if `file_format` is auto. Raises DataError for an unknown suffix."""
    suffix = Path(plain_name(path.name)).suffix.lower()
    chosen = SUFFIX_FORMATS.get(suffix) if file_format == "auto" else file_format
    if chosen is None:
        raise DataError(
            f"{path}: the suffix {path.suffix!r} tells no format; set data.format to one of {', '.join(READERS)}"
        )
    return chosen


def has_header(fields: Fields, header: bool | None) -> bool:
    """Return whether the first row of a table is a header: `header` or, if it is None, whether a field other than the
    group is given by name."""
    if header is not None:
        return header
    columns = [column for role, column in fields.items() if role != GROUP]
    return any(isinstance(one, str) for column in columns for one in (column if isinstance(column, list) else [column]))


def column_names(path: Path, file_format: str, dialect: Dialect = PLAIN) -> list[str]:
    """Return the names of a file's columns: a table's first row, a parquet file's schema, the keys of the first record.

    The list is empty for an empty file and for a format without names (conll, lines).
    """
    chosen = format_of(path, file_format)
    if chosen == OWN:
        return next((list(record) for _, record in own_records(path, dialect) if not isinstance(record, BadRow)), [])
    if chosen == "parquet":
        return list(_parquet(path).schema_arrow.names)
    if chosen in TABLES:
        return next((cells for _, cells in _cells_of(path, chosen, dialect) if isinstance(cells, list)), [])
    if chosen in ("jsonl", "json"):
        bad = None
        for number, written in _records(_File(path, chosen, {}, False, iter, dialect)):
            record = _annotated(written)
            if isinstance(record, dict):
                return list(record)
            bad = bad or _record(number, record, {})
        if isinstance(bad, BadRow):
            raise DataError(f"{bad.describe(path)}; write one object with named fields on each line")
    return []


def header_remedy(path: Path, file_format: str, is_header: Callable[[list[str]], bool], dialect: Dialect) -> str | None:
    """Return what to do if the header of a table is not its first row, but one of the next HEADER_ROWS; else None."""
    chosen = format_of(path, file_format)
    if chosen in TABLES:
        # Quotes that do not close are another problem.
        with suppress(DataError):
            for number, cells in islice(_cells_of(path, chosen, dialect), 1, 1 + HEADER_ROWS):
                if isinstance(cells, list) and is_header(cells):
                    line = "row" if chosen == "xlsx" else "line"
                    return f"{line} {number} seems to be the header: set data.skip_lines={number - 1}"
    return None


def _cells_of(path: Path, kind: str, dialect: Dialect) -> Iterator[tuple[int, list[str] | BadRow]]:
    """Yield the number and the cells of each row of a table."""
    if kind == "xlsx":
        yield from text_rows(path, dialect)
        return
    with open_text(path, kind, dialect) as lines:
        yield from dialect.cells(kind, path, dialect.lines(lines))


def open_text(path: Path, kind: str, dialect: Dialect, encoding: str = "utf-8-sig") -> TextIO:
    """Open a text file so that lines end at a line feed only, except within the quotes of a table."""
    is_quoted = kind in SEPARATED_BY and dialect.around(kind) is not None
    if dialect.skips:
        require_utf_8(path)
    # By default a carriage return within a text would end the line too. The csv module needs the line ends as they are.
    return open(path, encoding=encoding, errors=dialect.errors, newline="" if is_quoted else "\n")


@contextmanager
def _lines_of(file: _File) -> Iterator[Iterable[str]]:
    """Open the text of a file; yields the lines behind those that are not read."""
    with open_text(file.path, file.kind, file.dialect) as lines:
        yield file.watch(file.dialect.lines(lines))


def _require_lines(path: Path, what: str, dialect: Dialect) -> None:
    """Raise DataError if `data.skip_lines` is set for a file that does not consist of lines."""
    if dialect.skip_lines:
        raise DataError(
            f"{path}: data.skip_lines is {dialect.skip_lines}, but the file is {what}, which has no lines; set "
            "data.skip_lines=0"
        )


def _read_table(file: _File) -> Iterator[Row | BadRow]:
    by_token = token_fields(file.path, file.kind, file.fields, file.header, file.dialect)
    file = file if by_token is None else replace(file, fields=by_token)
    with nullcontext() if file.kind == "xlsx" else _lines_of(file) as lines:
        numbered = (
            text_rows(file.path, file.dialect) if lines is None else file.dialect.cells(file.kind, file.path, lines)
        )
        rows = _rows_of_cells(file, numbered, is_token=by_token is not None)
        yield from rows if by_token is None else sentences_of_rows(rows)


def token_fields(path: Path, kind: str, fields: Fields, header: bool, dialect: Dialect) -> Fields | None:
    """Return the fields of a table with one token a row, with that of SENTENCE if it has one; else None.

    Its first tokens and tags are single ones. Raises DataError if nothing tells where a sentence begins.
    """
    if kind not in TABLES or "tokens" not in fields:
        return None
    file = _File(path, kind, fields, header, iter, dialect)
    found = islice(_rows_of_cells(file, _cells_of(path, kind, dialect), is_token=True), SAMPLED_ROWS)
    rows = [row for row in found if isinstance(row, Row)]
    known = SENTENCE in fields
    names = column_names(path, kind, dialect) if header else []
    column = sentence_column([name for name in names if name not in fields.values()])
    # With the column of sentences a token may be several words, as a name is.
    roles = (
        ["tags"] if (known or column) and "tags" in fields else [role for role in ("tokens", "tags") if role in fields]
    )
    are_single = all(is_single(row.values[role], role) for row in rows for role in roles)
    if not rows or not are_single or not (known or column or "tags" in fields):
        return None
    if known or column:
        return fields if known else {**fields, SENTENCE: str(column)}
    if all(row.number == number for number, row in enumerate(rows, rows[0].number)):
        raise DataError(
            f"{path}: each row has one token and one tag, but no column tells where a sentence begins; set "
            f"data.fields.{SENTENCE} to a column that changes with each sentence, or put an empty line after each"
        )
    return fields


def _rows_of_cells(
    file: _File, numbered: Iterator[tuple[int, list[str] | BadRow]], *, is_token: bool
) -> Iterator[Row | BadRow]:
    width, most = None, -1
    columns: dict[str, int] = {}
    separator = "\t" if file.kind == "xlsx" else file.dialect.between(file.kind)
    for number, cells in numbered:
        if isinstance(cells, BadRow):
            yield cells
            continue
        if width is None:
            width, columns = len(cells), _columns(file, cells, number)
            most = max(columns.values(), default=-1)
            if file.header:
                continue
        if not file.dialect.fits(file.kind, cells, width, most, header=file.header):
            rule = f"makes {counted(len(cells), 'column')} where the first row of the file has {width}"
            if len(cells) > width:
                rule += (
                    " (without header and quotes, data.skip_lines=1 data.quote=, numbered columns may have more behind)"
                )
            yield BadRow(number, WHOLE_ROW, separator.join(cells), rule)
            continue
        row = Row(number, {role: cells[index] for role, index in columns.items()})
        if len(cells) != width and file.kind in SEPARATED_BY and (len(cells) < width or any(cells[width:])):
            row.values[WIDTH] = f"{len(cells)} instead of {width}"
        if not is_token:
            read_lists(row.values)
        yield row


def _columns(file: _File, first: list[str], number: int) -> dict[str, int]:
    """Return the index of each field's column in the first row, which has this number.

    Raises DataError for a column that the row lacks.
    """
    columns, place, wanted = {}, f"{file.path}:{number}", file.fields.values()
    names = {column for column in wanted if isinstance(column, str)}
    most = max((column for column in wanted if isinstance(column, int)), default=0)

    def is_header(cells: list[str]) -> bool:
        return len(cells) > most and (names <= {*cells} if file.header else len(cells) > len(first))

    def remedy() -> str | None:
        found = header_remedy(file.path, file.kind, is_header, file.dialect) or file.dialect.remedy(first, file.kind)
        is_conll = found is None and "tokens" in file.fields and len(first) == 1
        return "set data.format=conll if each line is a token and its tag" if is_conll else found

    for role, column in file.fields.items():
        key = key_of(role)
        if isinstance(column, int):
            if column >= len(first):
                raise DataError(
                    f"{place}: {key} is column {column}, counted from 0, but the row has "
                    f"{counted(len(first), 'column')}; {remedy() or f'set {key} to a number below {len(first)}'}"
                )
            columns[role] = column
        elif not file.header:
            raise DataError(
                f"{place}: {key} is {column!r}, but the file is read without a header; "
                f"set {key} to a column number counted from 0, or data.header=true"
            )
        elif column not in first:
            shown = list(map(shortened, first))
            close = f"nearest: {', '.join(near)}; " if (near := nearest(column, shown)) else ""
            usual = (
                f"{close}set {key} to one of these or, if this row is a row of data, set data.header=false and columns "
                "by number, counted from 0"
            )
            raise DataError(f"{place}: {key} is {column!r}, but the header has {shown}; {remedy() or usual}")
        elif first.count(column) > 1:
            places = ", ".join(str(index) for index, cell in enumerate(first) if cell == column)
            raise DataError(
                f"{place}: {key} is {column!r}, but the header has it {first.count(column)} times, as "
                f"columns {places}, counted from 0; set {key} to one of these numbers and data.header=true"
            )
        else:
            columns[role] = first.index(column)
    return columns


def _read_json(file: _File) -> Iterator[Row | BadRow]:
    yield from (_record(number, record, file.fields) for number, record in _records(file))


def _records(file: _File) -> Iterator[tuple[int, object]]:
    """Yield the content of each line, or each record of a document; a BadRow if it is not JSON."""
    if is_document(file.path, file.dialect):
        _require_lines(file.path, "one JSON document", file.dialect)
        yield from document_records(file.path, file.dialect.records, file.fields, file.dialect.errors)
        return
    with _lines_of(file) as lines:
        for number, line in enumerate(lines, 1 + file.dialect.skip_lines):
            # Rows are named by their line, so an empty line is counted, but it yields no row.
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, BadRow(number, WHOLE_ROW, line.strip(), f"is not a JSON object: {reason_of(error)}")


def _read_parquet(file: _File) -> Iterator[Row | BadRow]:
    _require_lines(file.path, "parquet", file.dialect)
    table, fields = _parquet(file.path), file.fields
    names = table.schema_arrow.names
    within = [name for name in map(str, fields.values()) if name.partition(".")[0] in names]
    if absent := [one for one in fields.values() if one not in (*names, *within) and one not in range(len(names))]:
        keys = ", ".join(key_of(role) for role, column in fields.items() if column in absent)
        raise DataError(
            f"{file.path}: no column {absent}; the file has {names}; {hint(str(absent[0]), names)}; set {keys} to "
            "these or their numbers"
        )
    wanted: Fields = {role: names[column] if isinstance(column, int) else column for role, column in fields.items()}
    written = json.loads((table.schema_arrow.metadata or {}).get(b"huggingface", "{}"))
    number, named = 0, class_names((written.get("info") or {}).get("features") or {})
    # Only the needed columns are decoded.
    for batch in table.iter_batches(batch_size=8192, columns=list(dict.fromkeys(wanted.values()))):
        for record in batch.to_pylist():
            number += 1
            for name in named.keys() & record.keys():
                record[name] = with_names(record[name], named[name])
            yield _record(number, record, wanted)


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the numbers in each column of the library datasets that has such names."""
    found = {}
    for column, feature in features.items():
        # The names of a list are those of its items.
        while (
            isinstance(feature, list) or isinstance(feature, dict) and isinstance(feature.get("feature"), dict | list)
        ):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            found[column] = feature["names"]
    return found


def with_names(value: Any, names: list[str]) -> Any:
    """Return the names of numbers, also within lists."""
    if isinstance(value, list):
        return [with_names(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _parquet(path: Path) -> Any:
    """Open a parquet file as a `pyarrow.parquet.ParquetFile`."""
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a parquet file ({error}); set data.format") from None


def _annotated(record: object) -> object:
    """Return [TEXT, {"entities": ...}], as spaCy writes a row, as an object; anything else as it is."""
    if isinstance(record, list) and len(record) == 2 and isinstance(record[0], str) and isinstance(record[1], dict):
        return {"text": record[0], **record[1]}
    return record


def _record(number: int, record: object, fields: Fields) -> Row | BadRow:
    if isinstance(record, BadRow):
        return record
    if isinstance(record, list) and fields and all(isinstance(column, int) for column in fields.values()):
        record = dict(enumerate(record))
    record = _annotated(record)
    if not isinstance(record, dict):
        by_number = ": name items of a list by number, such as {text: 0}" if isinstance(record, list) else ""
        return BadRow.of(number, WHOLE_ROW, record, f"is not an object with named fields{by_number}")
    values = {}
    for role, name in fields.items():
        value = field_of(record, name)
        # Rows without a label may be predicted. Whether a label is needed is for the target to say.
        if value is ABSENT and role not in OPTIONAL_ROLES and not role.startswith("negatives."):
            close = f" of folds.group_by; {hint(str(name), map(str, record))}" if role == GROUP else ""
            return BadRow(number, str(name), json.dumps(record, ensure_ascii=False), f"lacks this field{close}")
        values[role] = None if value is ABSENT else plain_labels(value) if role == "label" else value
    read_lists(values)
    return Row(number, values)


def own_records(path: Path, dialect: Dialect) -> Iterator[tuple[int, Any]]:
    """Yield what the user's own reader yields for a file."""
    assert dialect.reader is not None, "the format is the user's own"
    return dialect.reader.records(path)


def _read_own(file: _File) -> Iterator[Row | BadRow]:
    if numbers := [role for role, column in file.fields.items() if isinstance(column, int)]:
        raise DataError(
            f"{file.path}: {key_of(numbers[0])} is a number, but data.reader yields fields by name; set it to a name"
        )
    yield from (_record(number, record, file.fields) for number, record in own_records(file.path, file.dialect))


def _read_lines(file: _File) -> Iterator[Row | BadRow]:
    with _lines_of(file) as lines:
        for number, line in enumerate(lines, 1 + file.dialect.skip_lines):
            if line.strip():
                yield Row(number, {"text": line.rstrip("\r\n")})


def _read_conll(file: _File) -> Iterator[Row | BadRow | Mark]:
    """Yield sentences of `token ... tag` lines, ended by an empty line; `fields` has the two columns by number."""
    fields = file.fields
    wanted = [column for role in ("tokens", "tags") if isinstance(column := fields.get(role), int)]
    if "tokens" not in fields or len(wanted) != 1 + ("tags" in fields):
        raise DataError(
            f"{file.path}: data.fields is {fields}, but the fields of CoNLL columns are tokens and tags, numbered from "
            "0; set e.g. {tokens: 0, tags: 1}, or data.format"
        )
    with open_text(file.path, file.kind, file.dialect) as sample:
        columns = Columns.of(file.dialect.lines(sample), wanted)
    with _lines_of(file) as lines:
        yield from sentences(lines, 1 + file.dialect.skip_lines, columns)


READERS: dict[str, Callable[[_File], Iterator[Row | BadRow | Mark]]] = {
    "tsv": _read_table, "csv": _read_table, "jsonl": _read_json, "json": _read_json, "parquet": _read_parquet,
    "lines": _read_lines, "conll": _read_conll, "xlsx": _read_table,
}  # fmt: skip
