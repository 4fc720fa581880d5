"""What a reader yields, and the contract of your own readers."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from nlu.config.errors import DataError
from nlu.config.sentences import called, shortened
from nlu.config.types import Config

WHOLE_ROW = "(row)"
"""in the place of a field, for a problem of the row as a whole"""
LISTED_CAUSES, LISTED_ROWS = 10, 3
NUMBERS = re.compile(r"\d+")


@dataclass(slots=True)
class Row:
    """One row and the value of each field; `number` is its line in the file or, in a JSON list or parquet file, its
    position, counted from 1."""

    number: int
    values: dict[str, Any]


@dataclass(slots=True)
class BadRow:
    """A row that cannot be used: its number, the field, the value and the rule that the value breaks."""

    number: int
    field: str
    value: str
    rule: str
    is_text: bool = True
    """whether the value is a text; other values are written as JSON, so that 5 differs from "5\""""

    @classmethod
    def of(cls, number: int, field: str, value: object, rule: str) -> Self:
        """Make a BadRow from a value of any type."""
        if isinstance(value, str):
            return cls(number, field, value, rule)
        return cls(number, field, json.dumps(value, ensure_ascii=False, default=str), rule, is_text=False)

    def describe(self, path: Path) -> str:
        """Return `file:row: field NAME: VALUE RULE`, the form of every data error."""
        return f"{called(path)}:{self.number}: {self.sentence}"

    @property
    def sentence(self) -> str:
        """The field, the value and the rule, without file and row."""
        shown = shortened(self.value, 80)
        # Half a character, as of bytes that are not UTF-8, cannot be printed; `repr` escapes it.
        shown = repr(shown) if self.is_text else shown.encode(errors="backslashreplace").decode()
        where = "the row" if self.field == WHOLE_ROW else f"field {self.field}:"
        return f"{where} {shown} {self.rule}"


class BadRows:
    """Counts rows that cannot be used, by file and cause; memory does not grow with their number."""

    def __init__(self) -> None:
        self.count = 0
        self._causes: dict[tuple[Path, str, str], list[BadRow]] = {}
        """the first rows of each cause"""
        self._counts = Counter[tuple[Path, str, str]]()

    def add(self, path: Path, bad: BadRow) -> None:
        """Count a row of a file."""
        # A rule may tell a number of the row, such as that of its tokens.
        cause = path, bad.field, NUMBERS.sub("#", bad.rule)
        self.count += 1
        if cause in self._causes or len(self._causes) < LISTED_CAUSES:
            first = self._causes.setdefault(cause, [])
            first += [bad] if len(first) < LISTED_ROWS else []
            self._counts[cause] += 1

    def described(self) -> list[str]:
        """Return a line for each row; of a cause with more than LISTED_ROWS rows, one with their count."""
        lines = []
        for cause, rows in self._causes.items():
            if (more := self._counts[cause] - len(rows)) > 0:
                numbers = ", ".join(str(row.number) for row in rows)
                lines.append(f"{called(cause[0])}:{numbers} and {more:,} more: {rows[0].sentence}")
            else:
                lines += [row.describe(cause[0]) for row in rows]
        return lines

    def error(self, rows: str, remedy: str) -> DataError:
        """Return the error of these rows; `rows` is how many were read, such as `43 rows of train`."""
        summary = f"{self.count:,} of the {rows} cannot be used" if self.count > 1 else ""
        return DataError(*self.described(), summary=summary, remedy=remedy)


@dataclass(slots=True)
class Mark:
    """A line that begins a document (-DOCSTART-)."""

    number: int


class Reader(Protocol):
    """Reads the rows of a file as records with named fields; `data.reader` names its class.

    Its constructor takes its options by keyword. A reader has no state between files.
    """

    def records(self, path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
        """Yield the number of each row in its file, ascending, such as its line, and its fields by name.

        The same file must always yield the same rows. `data.fields` chooses among the fields by name; their values may
        have any type that a line of jsonl can hold. Instead of the fields of a row that cannot be read, a reader may
        yield `BadRow`, which `data.on_bad_row` applies to; any other error ends the command.
        """

    def settings(self) -> Config:
        """Return all options that affect the rows, as JSON, for the name of the store."""
