"""Rows of a file with everything that the file has of them, so that they can be written again with more columns.

A row of a text file is kept as the text that it was read from, with quotes and line ends; a row of another file as a
record.
"""

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from nlu.config.errors import DataError
from nlu.config.sentences import counted
from nlu.data.conll import Columns
from nlu.data.dialect import OWN, PLAIN, SEPARATED_BY, Dialect, not_utf_8
from nlu.data.json_files import document_records, is_document
from nlu.data.reader import BadRow, Mark, Row
from nlu.data.readers import TABLES, Fields, column_names, has_header, open_text, own_records, read_rows, token_fields
from nlu.data.workbook import sheet_rows

BOM = "\ufeff"
MOST_FIRST_LINE = 1 << 20
"""bytes that are searched for the end of the first line"""
Original = str | dict[str, object] | list[object]
"""the text of a row, its record, or the cells of a sheet; in CoNLL columns, with the lines without
token before its sentence"""


class Start(NamedTuple):
    """A place between two rows of a text file, from which its rows can be read."""

    offset: int
    """bytes before it"""
    line: int
    """number of the line behind it"""
    head_lines: int
    """lines at the start of the file by which a table is read: those up to its first row, or its header"""


@dataclass(frozen=True)
class Originals:
    """A file whose rows are kept."""

    path: Path
    file_format: str
    """never auto"""
    fields: Fields
    header: bool | None
    dialect: Dialect = PLAIN

    @cached_property
    def has_header(self) -> bool:
        return self.file_format in TABLES and has_header(self.fields, self.header)

    @cached_property
    def _is_by_token(self) -> bool:
        """Whether the file is a table with one token a row, of which only the tokens are kept."""
        with _utf_8(self.path):
            return token_fields(self.path, self.file_format, self.fields, self.has_header, self.dialect) is not None

    @cached_property
    def columns(self) -> list[str]:
        """The names of all columns: column_0, column_1, ... in a table without a header, those of the first record in
        jsonl."""
        if self.file_format == "lines":
            return ["text"]
        if self.file_format == "conll" or self._is_by_token:
            return ["tokens"]
        with _utf_8(self.path):
            names = column_names(self.path, self.file_format, self.dialect)
        if self.file_format in TABLES and not self.has_header:
            return [f"column_{number}" for number in range(len(names))]
        return names

    @cached_property
    def head(self) -> str:
        """The text before the first row: the header of a table with line end and byte order mark, or ""."""
        if not self.has_header or not self.is_text:
            return BOM if self.is_text and self._has_mark() else ""
        with open_text(self.path, self.file_format, self.dialect, "utf-8") as lines, _utf_8(self.path):
            recent = _Recent(1)
            taken = recent.of(self.dialect.lines(lines))
            for _ in self.dialect.csv_reader(self.file_format, taken) if self._is_quoted else taken:
                text = recent.since(0)
                if text.strip("\r\n"):
                    mark = BOM if self.dialect.skip_lines and self._has_mark() else ""
                    return f"{mark}{text}" if text.endswith("\n") else f"{mark}{text}\n"
        return ""

    @cached_property
    def line_end(self) -> str:
        if not self.is_text:
            return "\n"
        if self.has_header:
            return "\r\n" if self.head.endswith("\r\n") else "\n"
        with open(self.path, "rb") as file:
            return "\r\n" if file.readline(MOST_FIRST_LINE).endswith(b"\r\n") else "\n"

    @cached_property
    def is_text(self) -> bool:
        """Whether rows are kept as texts."""
        if self.file_format in ("parquet", "xlsx", OWN) or self._is_by_token:
            return False
        with _utf_8(self.path):
            return not (self.file_format in ("json", "jsonl") and is_document(self.path, self.dialect))

    def rows(self, start: Start | None = None) -> Iterator[tuple[Row | BadRow, Original]]:
        """Yield each row with its original, those from `start` on. Raises DataError as `read_rows` does."""
        with _utf_8(self.path):
            yield from self._of_lines(self._recent, start) if self.is_text else self._of_records()

    def rows_and_starts(self, every: int, starts: list[Start | None]) -> Iterator[tuple[Row | BadRow, Original]]:
        """Yield what `rows` does; `starts` gets the place before each `every`-th row, None where only all rows can be
        read."""
        if not self.is_text:
            for count, found in enumerate(self.rows()):
                if count % every == 0:
                    starts.append(None)
                yield found
            return
        recent, head_lines, at = self._recent, 0, (0, 0)
        recent.bytes = self._bytes_before
        with _utf_8(self.path):
            for count, found in enumerate(self._of_lines(recent)):
                if count == 0 and self.file_format in TABLES:
                    head_lines = (found[0].number if self.has_header else recent.next) - 1 - self.dialect.skip_lines
                if count % every == 0:
                    starts.append(Start(*at, head_lines) if count else None)
                # Before the next row is asked for, which reads more lines.
                at = recent.bytes, recent.next
                yield found

    def record(self, original: Original, place: str) -> dict[str, object]:
        """Return a row by the names of its columns. Raises DataError with `place` if its columns have no such names."""
        found: object = original
        if isinstance(original, list):
            return self._record_of(original, place)
        if isinstance(original, str):
            if self._is_quoted:
                return self._record_of(next(self.dialect.csv_reader(self.file_format, [original])), place)
            if self.file_format in SEPARATED_BY:
                cells = original.strip("\r\n").split(self.dialect.between(self.file_format))
                return self._record_of(cells, place)
            if self.file_format == "conll":
                lines = self._conll.of_lines(original.removesuffix("\n").split("\n"))
                return {"tokens": [cells[self._token] for _, cells in lines if cells is not None]}
            if self.file_format == "lines":
                return {"text": original.strip("\r\n")}
            with suppress(ValueError, RecursionError):
                found = json.loads(original)
        if not isinstance(found, dict):
            raise DataError(
                f"{place} is not an object with named fields, and cannot be written in another format; give output the "
                "suffix .jsonl, or fix the row"
            )
        return found

    @property
    def _token(self) -> int:
        """The index of the column of tokens in a CoNLL file."""
        return int(self.fields["tokens"])

    @cached_property
    def _conll(self) -> Columns:
        with open_text(self.path, self.file_format, self.dialect) as lines:
            return Columns.of(self.dialect.lines(lines), [self._token])

    @property
    def _is_quoted(self) -> bool:
        return self.file_format in SEPARATED_BY and self.dialect.around(self.file_format) is not None

    @cached_property
    def _doubled(self) -> tuple[str, int] | None:
        """A name that several columns have, and their number."""
        return next(((name, count) for name, count in Counter(self.columns).items() if count > 1), None)

    def _record_of(self, cells: Sequence[object], place: str) -> dict[str, object]:
        """Return cells by the names of their columns. Raises DataError unless each cell has a distinct name."""
        if self._doubled:
            raise DataError(
                f"{self.path} has {self._doubled[1]} columns called {self._doubled[0]}, and cannot be written "
                "in another format; give output the suffix of the input"
            )
        names = self.columns
        if self.file_format == "xlsx" or not self.has_header and not self._is_quoted:
            names = [*names, *(f"column_{place}" for place in range(len(names), len(cells)))]
        elif len(cells) != len(names):
            raise DataError(
                f"{place} has {counted(len(cells), 'column')} where the first row of the file has {len(self.columns)}, "
                "and cannot be written in another format; give output the suffix of the input"
            )
        return dict(zip(names, cells, strict=False))

    @property
    def _recent(self) -> "_Recent":
        return _Recent(1 + self.dialect.skip_lines)

    @property
    def _bytes_before(self) -> int:
        """The bytes before the lines that are read."""
        with open_text(self.path, self.file_format, self.dialect, "utf-8") as lines:
            skipped = sum(len(line.encode()) for line in islice(lines, self.dialect.skip_lines))
        return skipped or len(BOM.encode()) * self._has_mark()

    def _of_lines(self, taken: "_Recent", start: Start | None = None) -> Iterator[tuple[Row | BadRow, Original]]:
        watch, moved = taken.of, 0
        if start is not None:
            moved = start.line - taken.next - start.head_lines

            def watch(lines: Iterator[str]) -> Iterator[str]:
                return taken.of(chain(islice(lines, start.head_lines), self._lines_from(start.offset)))

        rows = read_rows(self.path, self.file_format, self.fields, self.header, watch, self.dialect)
        if start is not None and start.head_lines and not self.has_header:
            # The first row only tells how many cells there are.
            next(rows)
        for row in rows:
            if not isinstance(row, Mark):
                # A CoNLL sentence keeps the marks before it, and all its lines even if BadRow.number is a later one.
                original = taken.since(0 if self.file_format == "conll" else row.number)
                row.number += moved
                yield row, original

    def _lines_from(self, offset: int) -> Iterator[str]:
        with open_text(self.path, self.file_format, self.dialect, "utf-8") as lines:
            # Nothing has been decoded yet.
            lines.buffer.seek(offset)
            yield from lines

    def _of_records(self) -> Iterator[tuple[Row | BadRow, Original]]:
        rows = read_rows(self.path, self.file_format, self.fields, self.header, dialect=self.dialect)
        if self._is_by_token:
            yield from (
                (row, {"tokens": row.values["tokens"] if isinstance(row, Row) else []})
                for row in rows
                if not isinstance(row, Mark)
            )
            return
        # The file is read twice, side by side: once by fields and once with everything that it holds.
        for row, whole in zip(rows, self._records(), strict=True):
            assert not isinstance(row, Mark), "only CoNLL columns have marks"
            yield row, whole

    def _records(self) -> Iterator[Original]:
        if self.file_format == "xlsx":
            rows = iter(sheet_rows(self.path, self.dialect))
            for _, cells in islice(rows, int(self.has_header), None):
                yield cells
            return
        if self.file_format in ("json", "jsonl"):
            # Items other than objects are kept as texts, so that `record` refuses them.
            for _, item in document_records(self.path, self.dialect.records, self.fields):
                yield item if isinstance(item, dict) else json.dumps(item, ensure_ascii=False)
            return
        if self.file_format == OWN:
            records = own_records(self.path, self.dialect)
            yield from ({} if isinstance(record, BadRow) else dict(record) for _, record in records)
            return
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(self.path).iter_batches(batch_size=8192):
            yield from batch.to_pylist()

    def _has_mark(self) -> bool:
        with open(self.path, "rb") as file:
            return file.read(3) == BOM.encode()


class NoOriginals(Originals):
    """A file of which nothing is written again: no row has a column, and no text is kept."""

    def __init__(self, source: Originals):
        """`source` is the file that is read."""
        super().__init__(source.path, "none", {}, None)

    @cached_property
    def columns(self) -> list[str]:
        return []

    @cached_property
    def is_text(self) -> bool:
        return False

    def record(self, original: Original, place: str) -> dict[str, object]:
        return {}


@contextmanager
def _utf_8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None


class _Recent:
    """The lines of a file since the last row, with their numbers."""

    def __init__(self, first: int) -> None:
        """`first`: the number of the first line."""
        self._lines: deque[tuple[int, str]] = deque()
        self.next = first
        """the number of the next line"""
        self.bytes: int | None = None
        """the bytes before it, counted unless it is None"""

    def of(self, lines: Iterator[str]) -> Iterator[str]:
        """Yield the lines and keep them."""
        for number, line in enumerate(lines, self.next):
            self._lines.append((number, line))
            self.next = number + 1
            if self.bytes is not None:
                self.bytes += len(line.encode())
            yield line

    def since(self, number: int) -> str:
        """Return the lines from this number on as one text, and forget all lines."""
        text = "".join(line for own, line in self._lines if own >= number)
        self._lines.clear()
        return text
