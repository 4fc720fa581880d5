"""The rows of a set's files, in their order: to be tokenized, and to be shown again to people.

Axes: N rows of a set.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.data.charset import not_utf_8
from nlu.data.dataset import Files, SourceFile
from nlu.data.dialect import PLAIN, Dialect
from nlu.data.fields import ROLES, chosen_layout, missing_roles, usual_fields
from nlu.data.layouts import Layout
from nlu.data.readers import (
    GROUP,
    TABLES,
    BadRow,
    Fields,
    Mark,
    Row,
    column_names,
    format_of,
    has_header,
    read_rows,
)
from nlu.data.seeds import text_hash
from nlu.data.store import StoredSet
from nlu.data.targets.names import NUMBER

CHUNK_ROWS = 4096
SAMPLED_ROWS = 1000
"""rows of a table in which the label of its first row is looked for"""
HEADER_WORDS = frozenset(
    "label labels class category target tag tags score rating stars sentiment polarity 标签 类别 分数".split()
)
Chunk = list[tuple[int, Row | BadRow | Mark]]


@dataclass(frozen=True)
class Reading:
    """How the files of a store are read."""

    fields: Fields
    file_format: str
    header: bool | None
    max_rows: int | None
    group_by: str | int | None
    dialect: Dialect = PLAIN

    def chunks(self, sources: Sequence[SourceFile], *, with_group: bool = False) -> Iterator[Chunk]:
        """Yield the number of the file, among these, and what its reader yields, some thousand rows at a time."""
        chunk: Chunk = []
        for number, source in enumerate(sources):
            for row in self.rows(source, with_group=with_group):
                chunk.append((number, row))
                if len(chunk) == CHUNK_ROWS:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk

    def rows(self, source: SourceFile, *, with_group: bool = False) -> Iterator[Row | BadRow | Mark]:
        """Yield what one file holds. Raises DataError at the line that is not UTF-8, or where a column is missing."""
        fields = {**self.fields, GROUP: self.group_by} if with_group and self.group_by is not None else self.fields
        taken = 0
        try:
            for row in read_rows(source.path, self.file_format, fields, self.header, dialect=self.dialect):
                if isinstance(row, Row) and source.label is not None:
                    row.values["label"] = source.label
                yield row
                taken += not isinstance(row, Mark)
                if taken == self.max_rows:
                    return
        except UnicodeDecodeError as error:
            raise not_utf_8(source.path, error) from None

    def column(self, role: str) -> str:
        """Return a field as messages call it."""
        column = self.group_by if role == GROUP else self.fields.get(role, role)
        return f"{role} (column {column})" if isinstance(column, int) and role != GROUP else str(column)


def fields_of(files: Files, sources: Sequence[SourceFile], targets: Sequence[str]) -> Fields:
    """Return the fields as set or, where `data.fields` is null, those that the first file's columns are called like: as
    the fields themselves, or as in GLUE.

    `targets` are the fields of the target, beside those that every task knows. Raises DataError where none is there.
    """
    if files.fields or files.format == "lines":
        return files.fields
    path = sources[0].path
    try:
        names = column_names(path, files.format, files.dialect)
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None
    if files.header is False and format_of(path, files.format) in TABLES:
        raise DataError(
            "data.fields is null, which takes columns by name, but data.header=false; set data.fields to columns by "
            "number, counted from 0"
        )
    known = list(dict.fromkeys([*ROLES, *targets]))
    found: Fields = dict(usual_fields(names, known))
    if not found and path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    if not found:
        raise DataError(
            f"{path}: data.fields is null, but no column is called like a field ({', '.join(known)}): the file has "
            f"{_listed(names) or 'no named ones'}; set data.fields to e.g. "
            "{text: COLUMN, label: COLUMN}, by name or by number from 0"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    """Return the names of columns, as many and as much of each as a message holds."""
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:12]]
    return ", ".join([*shown, *(["..."] if len(names) > 12 else [])])


def layout_of(
    fields: Fields, layouts: Sequence[str], targets: Sequence[str], files: Files, sources: Sequence[SourceFile]
) -> str:
    """Return the layout that the fields are of. Raises DataError naming the fields that are missing, and the columns
    that the first file has."""
    present = {**fields, "text": 0, "label": 0} if files.format == "lines" else fields
    if lacking := missing_roles(layouts, targets, present, files.format):
        seen, columns = "", ""
        if not files.fields:
            names = column_names(sources[0].path, files.format, files.dialect)
            seen, columns = f", so that fields are told by the columns' names: {fields}", f" ({_listed(names)})"
        raise DataError(
            f"data.fields is {files.fields or 'null'}{seen}, but the task needs {', '.join(lacking)} as well; set "
            f"data.fields to the columns of {', '.join(lacking)}{columns}"
        )
    chosen = chosen_layout(layouts, present)
    assert chosen is not None, "no layout lacks a field, so there is one"
    return chosen


def refuse_header_as_row(reading: Reading, source: SourceFile, labels: Sequence[str] | None) -> None:
    """Raise DataError where the first row of a table looks like the names of its columns but is read as a row.

    So it looks where no row after it, among the first thousand, has the same in the field label, and what it has there
    is a usual name for such a column, or all others have numbers there and it has none.
    """
    column = reading.fields.get("label")
    is_table = format_of(source.path, reading.file_format) in TABLES
    if reading.header is not None or has_header(reading.fields, None) or not is_table or column is None:
        return
    cells = []
    for row in reading.rows(source):
        if isinstance(row, Row):
            cells.append(str(row.values["label"]).strip())
        if len(cells) == SAMPLED_ROWS:
            break
    first, others = (cells[0], cells[1:]) if cells else ("", [])
    if not others or first in others or first in (labels or ()):
        return
    is_alone = not NUMBER.fullmatch(first) and all(map(NUMBER.fullmatch, others))
    if first.lower() in HEADER_WORDS or is_alone:
        raise DataError(
            f"{source.path}:1: field {reading.column('label')}: {first!r} stands in no other row, so the first row "
            "seems to hold the names of the columns, but is read as a row since data.fields gives columns by number; "
            "set data.header=true to leave it out, or data.header=false if it is a row"
        )


@dataclass(frozen=True)
class Texts:
    """The files of a stored set, from which the texts of its rows are read again."""

    reading: Reading
    sources: Sequence[SourceFile]
    layout: Layout

    def of(self, stored: StoredSet, rows_N: np.ndarray) -> Iterator[dict[str, Any] | None]:
        """Yield the texts, by field, of each row asked for, which come in ascending order; None for each that its file
        no longer holds in this place as it was when it was stored."""
        # Rows of one file lie together.
        bounds = np.searchsorted(stored.scalars("file", rows_N), np.arange(len(self.sources) + 1))
        for source, first, last in zip(self.sources, bounds, bounds[1:], strict=False):
            yield from self._of_file(source, stored, rows_N[first:last])

    def _of_file(self, source: SourceFile, stored: StoredSet, rows_N: np.ndarray) -> Iterator[dict[str, Any] | None]:
        asked = _in_pieces(stored, rows_N)
        wanted = next(asked, None)
        # Where the file is gone or another one by now, that is told row by row.
        with suppress(UserError, OSError):
            for row in self.reading.rows(source) if wanted is not None else ():
                while wanted is not None and wanted[0] < row.number:
                    yield None
                    wanted = next(asked, None)
                if wanted is None:
                    return
                if row.number == wanted[0] and not isinstance(row, Mark):
                    yield self._verified(row, wanted[1])
                    wanted = next(asked, None)
        while wanted is not None:
            yield None
            wanted = next(asked, None)

    def _verified(self, row: Row | BadRow, wanted: int) -> dict[str, Any] | None:
        if isinstance(row, BadRow) or self.layout.problem(row.values) is not None:
            return None
        return self.layout.shown(row.values) if text_hash(self.layout.identity(row.values)) == wanted else None


def _in_pieces(stored: StoredSet, rows_N: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the place in its file and the hash of each row, some thousand at a time: all at once take much."""
    for start in range(0, len(rows_N), CHUNK_ROWS):
        rows_B = rows_N[start : start + CHUNK_ROWS]
        yield from zip(stored.scalars("number", rows_B).tolist(), stored.text_hash_N[rows_B].tolist(), strict=True)


def texts_for_vocabulary(
    reading: Reading, sources: Sequence[SourceFile], layout: Layout, advance: Callable[[int], None]
) -> Iterator[list[str]]:
    """Yield the texts of the usable rows, some thousand rows at a time."""
    for chunk in reading.chunks(sources):
        rows = [row.values for _, row in chunk if isinstance(row, Row) and layout.problem(row.values) is None]
        yield [text for values in rows for text in layout.texts(values)]
        advance(len(chunk))
