"""How the cells of csv and tsv files are written, and cells read from their lines."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError

SEPARATED_BY = {"csv": ",", "tsv": "\t"}
"""What stands between the cells of a table, unless it is set."""
SEPARATORS = {"\t": "tsv", ",": "csv", ";": None, "|": None}
"""What tables are separated by, and the format that reads them so."""
MAX_CELL = 1 << 24
"""characters of a csv cell; without a limit, quotes that never close would take in the rest of the file"""
csv.field_size_limit(MAX_CELL)


@dataclass(frozen=True)
class Dialect:
    """How the cells of a csv or tsv file are written, as far as its format leaves that open.

    Raises UserError for a separator that cannot be one.
    """

    separator: str | None = None
    """the character between two cells; null: that of the format"""

    def __post_init__(self) -> None:
        separator = self.separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n' or separator.isalnum()):
            raise UserError(
                f"data.separator is {separator!r} but must be one character that separates cells, such as ; or |; set "
                "it to one, or leave it out for the comma of csv and the tab of tsv"
            )

    def between(self, file_format: str) -> str:
        """Return what separates the cells of a file in this format."""
        return self.separator or SEPARATED_BY[file_format]

    def cells(self, file_format: str, path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield number and cells of each row of a csv or tsv file. Raises DataError where quotes do not close."""
        separator = self.between(file_format)
        if file_format == "csv":
            yield from _numbered_csv(path, csv.reader(lines, strict=True, delimiter=separator))
            return
        for number, line in enumerate(lines, 1):
            if line.strip("\r\n"):
                yield number, line.rstrip("\r\n").split(separator)

    def remedy(self, first: Sequence[str], file_format: str) -> str | None:
        """Return what to do about a first row that is one cell and holds what separates other tables; None for any
        other."""
        found = [separator for separator in SEPARATORS if len(first) == 1 and separator in first[0]]
        if not found or file_format not in SEPARATED_BY:
            return None
        other = SEPARATORS[found[0]]
        if self.separator is not None:
            remedy = "correct data.separator, or leave it out"
        else:
            remedy = f"set data.format={other}" if other else f"set data.separator to {found[0]!r}"
        return f"the separator of this file seems to be {found[0]!r}: {remedy}"


PLAIN = Dialect()


def _numbered_csv(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}:{number}: the quotes of this row do not close ({error}); fix the row, "
                "or set data.format=tsv where the file is separated by tabs and not quoted"
            ) from None
        if cells:
            yield number, cells
