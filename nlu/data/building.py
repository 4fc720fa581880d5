"""The walk that every row takes once: read, checked, its target read, encoded, written.

Axes: N rows of one chunk.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nlu.config.errors import DataError
from nlu.config.words import called, counted
from nlu.data.dataset import SourceFile
from nlu.data.encoding import EncodedRows, unusable
from nlu.data.layouts import Layout
from nlu.data.parts import Chunks
from nlu.data.readers import GROUP, BadRow, Mark, Row
from nlu.data.reading import Chunk, Reading
from nlu.data.seeds import text_hash
from nlu.data.store import Misfit, Origin, SetWriter
from nlu.data.targets import Target
from nlu.data.tokenizing import Tokenizer

LISTED_BAD_ROWS = 20
LISTED_GROUPS = 100
Good = list[tuple[int, Row, Any]]
"""number of the file, the row and its target"""


class Builder:
    """Writes sets in order, train first, since it decides the names of the targets."""

    def __init__(
        self, folder: Path, reading: Reading, layout: Layout, target: Target, tokenizer: Tokenizer, *, max_len: int,
        skips_bad_rows: bool, chunks: Chunks,
    ):  # fmt: skip
        self.counts: dict[str, dict[str, Any]] = {}
        """of each set: rows, bad_rows, cut, document_marks, listed_bad_rows"""
        self.groups: dict[str, None] = {}
        """the first names of groups, for messages"""
        self._folder = folder
        self._reading = reading
        self._layout = layout
        self._target = target
        self._tokenizer = tokenizer
        self._max_len = max_len
        self._skips_bad_rows = skips_bad_rows
        self._chunks = chunks

    def add_set(
        self, name: str, key: str, sources: Sequence[SourceFile], advance: Callable[[int], None], *, with_group: bool
    ) -> None:
        """Write the set that the configuration key `key` names, `with_group` where its rows are grouped. Raises
        DataError naming the rows that cannot be used, where they may not be left out, and where none is left."""
        writer = SetWriter(self._folder / name, self._target.column())
        bad: list[str] = []
        counts = {"read": 0, "bad_rows": 0, "cut": 0, "document_marks": 0}
        for number, chunk in enumerate(self._reading.chunks(sources, with_group=with_group)):
            good = self._usable(chunk, sources, bad, counts)
            # Once one row has to be corrected, the rest is only checked for others.
            if good and (self._skips_bad_rows or not counts["bad_rows"]):
                rows = [row.values for _, row, _ in good]
                encoded = self._chunks.encoded(name, number, len(rows), partial(self._encode, rows))
                self._write(writer, good, sources, encoded, counts)
            advance(len(chunk))
        writer.close()
        if counts["bad_rows"] and not self._skips_bad_rows:
            raise _not_usable(bad, counts, name)
        if not writer.rows:
            where = ", ".join(str(source.path) for source in sources)
            raise DataError(
                *bad,
                summary=f"the set {name} is empty: {where} holds no usable row",
                remedy=f"set {key} to a file with rows",
            )
        if name == "train":
            self._target.close()
        self.counts[name] = {"rows": writer.rows, **counts, "listed_bad_rows": bad}

    def _usable(self, chunk: Chunk, sources: Sequence[SourceFile], bad: list[str], counts: dict[str, int]) -> Good:
        """The rows that can be used; the others are counted, and the first of them described."""
        good: Good = []
        for source, row in chunk:
            if isinstance(row, Mark):
                counts["document_marks"] += 1
                continue
            counts["read"] += 1
            target, problem = (None, row) if isinstance(row, BadRow) else self._read(row)
            if problem is None and isinstance(row, Row):
                good.append((source, row, target))
            elif problem is not None:
                counts["bad_rows"] += 1
                if len(bad) < LISTED_BAD_ROWS:
                    bad.append(problem.describe(sources[source].path))
        return good

    def _read(self, row: Row) -> tuple[Any, BadRow | None]:
        """Return the row's target, or what is wrong with the row."""
        values = row.values
        target: Any = None
        problem = self._layout.problem(values)
        if problem is None and GROUP in values and not _is_group(values[GROUP]):
            problem = GROUP, "is no group (folds.group_by)"
        if problem is None:
            target, problem = self._target.read(values)
        if problem is None:
            return target, None
        role, rule = problem
        return None, BadRow.of(row.number, self._reading.column(role), values.get(role), rule)

    def encode_part(
        self, name: str, sources: Sequence[SourceFile], advance: Callable[[int], None], part: int, parts: int, *,
        with_group: bool,
    ) -> set[int]:  # fmt: skip
        """Encode every chunk of a set whose number is `part` modulo `parts`, and keep it; returns the numbers of all
        chunks that hold rows. The job that joins the parts reports rows that cannot be used."""
        numbers: set[int] = set()
        for number, chunk in enumerate(self._reading.chunks(sources, with_group=with_group)):
            counts = {"read": 0, "bad_rows": 0, "document_marks": 0}
            if good := self._usable(chunk, sources, [], counts):
                numbers.add(number)
                if number % parts == part and not self._chunks.has(name, number):
                    self._chunks.keep(name, number, self._encode([row.values for _, row, _ in good]))
            advance(len(chunk))
        if name == "train":
            self._target.close()
        return numbers

    def _encode(self, rows: list[Any]) -> EncodedRows:
        return self._layout.encode(self._tokenizer, rows, self._max_len)

    def _write(
        self, writer: SetWriter, good: Good, sources: Sequence[SourceFile], encoded: EncodedRows, counts: dict[str, int]
    ) -> None:
        rows = [row.values for _, row, _ in good]
        counts["cut"] += int(encoded.cut_N.sum())
        origin = Origin(
            np.array([text_hash(self._layout.identity(values)) for values in rows], np.int64),
            np.array([self._group(values.get(GROUP)) for values in rows], np.int64),
            np.array([source for source, _, _ in good]),
            np.array([row.number for _, row, _ in good], np.int64),
            *_hashes_of_sides([self._layout.sides(values) for values in rows]),
        )
        try:
            writer.add(encoded, [target for _, _, target in good], origin)
        except Misfit as error:
            source, row, _ = good[error.row]
            raise error.described(f"{called(sources[source].path)}:{row.number}", self._target) from None

    def _group(self, value: Any) -> int:
        """A number that identifies a group, 0 where there are none."""
        if value is None:
            return 0
        if len(self.groups) < LISTED_GROUPS:
            self.groups[str(value)] = None
        return text_hash(str(value))


def _hashes_of_sides(pairs: list[tuple[str, str] | None]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return a number that identifies each first and each second text of pairs; null where rows are one text."""
    if not any(pairs):
        return None, None
    firsts, seconds = zip(*(pair for pair in pairs if pair is not None), strict=True)
    first_N, second_N = (np.array(list(map(text_hash, texts)), np.int64) for texts in (firsts, seconds))
    return first_N, second_N


def _is_group(value: Any) -> bool:
    return value is not None and bool(str(value).strip()) and unusable(str(value)) is None


def _not_usable(bad: list[str], counts: dict[str, int], name: str) -> DataError:
    summary = ""
    if counts["bad_rows"] > len(bad):
        rows = f"{counts['bad_rows']:,} of the {counted(counts['read'], 'row')} of {name}"
        summary = f"{rows} cannot be used, the first {len(bad)} are"
    return DataError(
        *bad,
        summary=summary,
        remedy="mend these rows, or set data.on_bad_row=skip to leave such rows out and count them",
    )
