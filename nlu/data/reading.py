"""The rows of a set's files, in their order: read to be tokenized, and read again to be shown.

Axes: N rows of a set.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.sentences import listed, shortened
from nlu.data.dataset import Files, SourceFile
from nlu.data.dialect import PLAIN, Dialect, not_utf_8
from nlu.data.fields import (
    IN_WINDOWS,
    LISTS,
    NO_WINDOWS,
    ROLES,
    chosen_layout,
    missing_roles,
    tagging_fields,
    usual_fields,
)  # fmt: skip
from nlu.data.layouts import LAYOUTS, Layout, Values
from nlu.data.lists_in_rows import pairs_of
from nlu.data.reader import BadRow, Mark, Row
from nlu.data.readers import GROUP, TABLES, Fields, column_names, format_of, has_header, header_remedy, read_rows
from nlu.data.seeds import text_hash
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.classes import NUMBER
from nlu.data.tokenizing import Tokenizer

CHUNK_ROWS = 4096
LOOKED_AT_CHUNKS = 3
"""chunks of training rows, about 12,000, that tell what tags mean"""
SAMPLED_ROWS = 1000
"""rows of a table that are searched for the label of its first row"""
HEADER_WORDS = frozenset(
    "label labels class category target tag tags score rating stars sentiment polarity 标签 类别 分数".split()
)
Chunk = list[tuple[int, Row | BadRow | Mark]]


class Blocks(Protocol):
    """Makes rows of the lines of a file, where a line is not a row; the data of a task names it as `blocks`."""

    left_out: Counter[tuple[str, str]]
    """number of blocks that were not yielded as rows, by reason and remedy, for the error of an empty set"""

    def rows(self, path: Path, tokenizer: Tokenizer | None, max_lines: int | None) -> Iterator[Row | BadRow]:
        """Yield the rows of the first lines of a file, in order of their numbers; None: of all lines.

        Without a tokenizer, the rows are those from which its vocabulary is built.
        """


@dataclass(frozen=True)
class Reading:
    """How the files of a store are read."""

    fields: Fields
    file_format: str
    header: bool | None
    max_rows: int | None
    group_by: str | int | None
    dialect: Dialect = PLAIN
    blocks: Blocks | None = None
    """what makes rows of lines; None: the file has rows"""
    tokenizer: Tokenizer | None = None
    """what makes tokens of lines, once it is known"""

    @classmethod
    def of(cls, files: Files, fields: Fields, group_by: str | int | None) -> Self:
        """Read as `files` says, with these fields."""
        return cls(fields, files.format, files.header, files.max_rows, group_by, files.dialect, files.blocks)

    @property
    def has_lists(self) -> bool:
        """Whether rows have several second texts, and are taken apart into pairs."""
        return not self.fields.keys().isdisjoint(LISTS)

    def by(self, tokenizer: Tokenizer | None) -> Self:
        """Return how rows are read that are made of tokens."""
        return self if self.blocks is None else replace(self, tokenizer=tokenizer)

    def chunks(self, sources: Sequence[SourceFile], *, with_group: bool = False) -> Iterator[Chunk]:
        """Yield lists of CHUNK_ROWS pairs: the index of a file, and what its reader yields."""
        chunk: Chunk = []
        for number, source in enumerate(sources):
            for row in self.rows(source, with_group=with_group):
                chunk.append((number, row))
                if len(chunk) == CHUNK_ROWS:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk

    def first_values(self, sources: Sequence[SourceFile], layout: Layout) -> Iterator[Values]:
        """Yield the fields of the rows of the first chunks whose texts can be used."""
        for chunk in islice(self.chunks(sources), LOOKED_AT_CHUNKS):
            yield from _values(chunk, layout)

    def rows(self, source: SourceFile, *, with_group: bool = False) -> Iterator[Row | BadRow | Mark]:
        """Yield the rows of one file. Raises DataError for a line that is not UTF-8, or a missing column."""
        # Other sets may lack the column of the groups.
        fields = {**self.fields, GROUP: self.group_by} if with_group and self.group_by is not None else self.fields
        taken = 0
        try:
            if self.blocks is not None:
                yield from self.blocks.rows(source.path, self.tokenizer, self.max_rows)
                return
            for row in read_rows(source.path, self.file_format, fields, self.header, dialect=self.dialect):
                # The file says the label, not a column.
                if isinstance(row, Row) and source.label is not None:
                    row.values["label"] = source.label
                if isinstance(row, Row) and self.has_lists:
                    yield from pairs_of(row)
                else:
                    yield row
                # Bad rows count too, so that `max_rows` reads the same lines whether they are skipped or not.
                taken += not isinstance(row, Mark)
                if taken == self.max_rows:
                    return
        except UnicodeDecodeError as error:
            raise not_utf_8(source.path, error) from None

    def checked(self, row: Row | BadRow, layout: Layout) -> Row | BadRow:
        """Return the row, or a BadRow if a text of it cannot be used."""
        if isinstance(row, Row) and (problem := layout.problem(row.values)) is not None:
            return self.bad(row, *problem)
        return row

    def bad(self, row: Row, role: str, rule: str) -> BadRow:
        """Return a BadRow for a row whose field `role` breaks a rule."""
        return BadRow.of(row.number, self.column(role), row.values.get(role), rule)

    def column(self, role: str) -> str:
        """Return the name of a field in messages."""
        if role == "text_b" and "candidates" in self.fields:
            role = "candidates"
        column = self.group_by if role == GROUP else self.fields.get(role, role)
        if isinstance(column, list):
            return ", ".join(map(str, column))
        return f"{role} (column {column})" if isinstance(column, int) and role != GROUP else str(column)


def fields_of(files: Files, sources: Sequence[SourceFile], targets: Sequence[str]) -> Fields:
    """Return `data.fields` or, if it is null, the columns of the first file that are named like fields, or as in GLUE.

    `targets` are the fields of the target, in addition to those of all tasks. Raises DataError if no column matches.
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
    own = [] if files.layout is None else chain.from_iterable(files.layout.alternatives)
    known = list(dict.fromkeys([*own, *ROLES, *targets]))
    usual = usual_fields(names, known)
    found: Fields = dict(tagging_fields(usual, names) if "tags" in targets else usual)
    # An empty file lacks the columns too, but that is another mistake.
    if not found and path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    if not found:
        title = header_remedy(path, files.format, lambda cells: bool(usual_fields(cells, known)), files.dialect)
        if title is not None:
            raise DataError(f"{path}: the first row has no column that is called like a field; {title}")
        other_separator = files.dialect.remedy(names, format_of(path, files.format))
        if other_separator is not None:
            raise DataError(f"{path}:{1 + files.dialect.skip_lines}: has one column; {other_separator}")
        is_text = path.suffix.lower() == ".txt" and files.format == "auto"
        tagged = ", or data.format=conll and data.fields={tokens: 0, tags: 1} if each line is a token and its tag"
        other = tagged if is_text and "tags" in targets else ""
        raise DataError(
            f"{path}: data.fields is null, but no column is called like a field ({', '.join(known)}): the file has "
            f"{_columns(names) or 'no named ones'}; set data.fields to e.g. "
            f"{{text: COLUMN, label: COLUMN}}, by name or by number from 0{other}"
        )
    return found


def _columns(names: Sequence[str]) -> str:
    return listed(list(map(shortened, names)))


def layout_of(
    fields: Fields, layouts: Sequence[str], targets: Sequence[str], files: Files, sources: Sequence[SourceFile]
) -> Layout:
    """Return `data.layout` or, if it is null, the first of the layouts whose texts are among the fields.

    Raises DataError with the missing fields and the columns of the first file, and UserError for a layout that does not
    fit the task.
    """
    present = {**fields, "text": 0, "label": 0} if files.format == "lines" else fields
    if files.layout is not None and files.layout.name not in layouts:
        raise UserError(
            f"data.layout is a {type(files.layout).__name__}, a layout of the kind {files.layout.name}, but the task "
            f"takes {', '.join(layouts)}; choose another task, or set data.layout=null"
        )
    alternatives = None if files.layout is None else files.layout.alternatives
    if lacking := missing_roles(layouts, targets, present, files.format, alternatives):
        seen, columns = "", ""
        if not files.fields:
            names = column_names(sources[0].path, files.format, files.dialect)
            seen, columns = f", so fields are found by the columns' names: {fields}", f" ({_columns(names)})"
        raise DataError(
            f"data.fields is {files.fields or 'null'}{seen}, but the task needs {', '.join(lacking)} as well; set "
            f"data.fields to the columns of {', '.join(lacking)}{columns}"
        )
    chosen = files.layout.name if files.layout is not None else chosen_layout(layouts, present)
    assert chosen is not None, "a layout without missing fields exists"
    known = {role for roles in (alternatives or LAYOUTS[chosen].alternatives) for role in roles}
    if chosen == "units" and files.lengths.prompts or not set(files.lengths.prompts) <= known:
        why = "tags characters of the text" if chosen == "units" else f"reads {', '.join(sorted(known))}"
        raise UserError(
            f"data.prompts is {dict(files.lengths.prompts)}, but the task {why}; give prompts of the texts that it "
            "reads, or set data.prompts=null"
        )
    if files.layout is not None:
        return files.layout  # type: ignore[no-any-return]
    if files.lengths.long == "windows" and chosen not in IN_WINDOWS:
        raise UserError(NO_WINDOWS)
    return LAYOUTS[chosen]


def refuse_header_as_row(reading: Reading, source: SourceFile, labels: Sequence[str] | None) -> None:
    """Raise DataError if the first row of a table looks like a header but is read as a row.

    It does if its label occurs in no other of the first SAMPLED_ROWS rows and either is a usual name of such a column,
    or is a word while all other labels are numbers.
    """
    column = reading.fields.get("label")
    is_table = format_of(source.path, reading.file_format) in TABLES
    if (
        reading.header is not None
        or has_header(reading.fields, None)
        or not is_table
        or not isinstance(column, str | int)
    ):
        return
    cells = []
    for row in reading.rows(source):
        if isinstance(row, Row):
            cells.append(str(row.values["label"]).strip())
        if len(cells) == SAMPLED_ROWS:
            break
    first, others = (cells[0], cells[1:]) if cells else ("", [])
    place = f"{source.path}:{1 + reading.dialect.skip_lines}"
    # A label that occurs again is a label.
    if not others or first in others or first in (labels or ()):
        return
    is_only_word = not NUMBER.fullmatch(first) and all(map(NUMBER.fullmatch, others))
    if first.lower() in HEADER_WORDS or is_only_word:
        raise DataError(
            f"{place}: field {reading.column('label')}: {first!r} occurs in no other row, so the first row "
            "seems to be a header, but it is read as a row because data.fields gives columns by number; "
            "set data.header=true to leave it out, or data.header=false if it is a row"
        )


@dataclass(frozen=True)
class Texts:
    """The files of a stored set, from which the texts of its rows are read again."""

    reading: Reading
    sources: Sequence[SourceFile]
    layout: Layout

    def of(self, stored: StoredSet, rows_N: np.ndarray) -> Iterator[Values | None]:
        """Yield the texts of each of these rows, by field; None for a row that its file no longer has at this position.

        `rows_N` must be in ascending order, which makes the rows of each file adjacent.
        """
        bounds = np.searchsorted(stored.scalars("file", rows_N), np.arange(len(self.sources) + 1))
        for source, first, last in zip(self.sources, bounds, bounds[1:], strict=False):
            yield from self._of_file(source, stored, rows_N[first:last])

    def _of_file(self, source: SourceFile, stored: StoredSet, rows_N: np.ndarray) -> Iterator[Values | None]:
        rows, row = self._rows(source), None
        for rows_B in chunks_of(rows_N):
            numbers, hashes = stored.scalars("number", rows_B).tolist(), stored.text_hash_N[rows_B].tolist()
            # Rows of a file are read in one pass, because stored rows are in file order.
            for number, wanted in zip(numbers, hashes, strict=True):
                found = None
                # Several pairs of one row have its number.
                while row is None or row.number <= number:
                    found = self._verified(row, wanted) if row is not None and row.number == number else None
                    if found is not None or (row := next(rows, None)) is None:
                        break
                yield found

    def _rows(self, source: SourceFile) -> Iterator[Row]:
        """Yield the rows of a file, and nothing from where it cannot be read any more."""
        # The text is only for display, so a file that was removed meanwhile is skipped.
        with suppress(UserError, OSError):
            yield from (row for row in self.reading.rows(source) if isinstance(row, Row))

    def _verified(self, row: Row, wanted: int) -> Values | None:
        """Return the texts of a row, or None if their hash differs."""
        checked = self.reading.checked(row, self.layout)
        # The file may have changed since: a line with the same number may be another row.
        if isinstance(checked, BadRow) or text_hash(self.layout.identity(checked.values)) != wanted:
            return None
        return self.layout.shown(checked.values)


def texts_for_vocabulary(
    reading: Reading, sources: Sequence[SourceFile], layout: Layout, advance: Callable[[int], None]
) -> Iterator[list[str]]:
    """Yield the texts of the usable rows of each chunk."""
    for chunk in reading.chunks(sources):
        yield [text for values in _values(chunk, layout) for text in layout.texts(values)]
        advance(len(chunk))


def _values(chunk: Chunk, layout: Layout) -> list[Values]:
    return [row.values for _, row in chunk if isinstance(row, Row) and layout.problem(row.values) is None]
