"""How the text of a file is written: the separator and quotes of csv and tsv cells, and its character encoding."""

import codecs
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError

SEPARATED_BY = {"csv": ",", "tsv": "\t"}
"""the separator of each format, unless another one is set"""
SEPARATORS = {"\t": "tsv", ",": "csv", ";": None, "|": None}
"""the usual separators of tables, and the format that has each"""
MAX_CELL = 1 << 24
"""characters of a csv cell; without a limit, unclosed quotes would read the rest of the file as one cell"""
csv.field_size_limit(MAX_CELL)
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""byte order marks; those of UTF-32 come first, because they begin like those of UTF-16"""
CANDIDATES = {"gb18030": "Chinese", "cp1252": "Western European"}
"""other usual encodings; the stricter one comes first, because cp1252 decodes almost any bytes"""
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Dialect:
    """How the cells of a csv or tsv file are written. Raises UserError for an invalid separator."""

    separator: str | None = None
    """the character between two cells; None: that of the format"""

    def __post_init__(self) -> None:
        separator = self.separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n' or separator.isalnum()):
            raise UserError(
                f"data.separator is {separator!r} but must be one character that separates cells, such as ; or |; set "
                "it to one, or leave it out for the comma of csv and the tab of tsv"
            )

    def between(self, file_format: str) -> str:
        """Return the separator of a file in this format."""
        return self.separator or SEPARATED_BY[file_format]

    def cells(self, file_format: str, path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of the first line of each row that is not empty, and its cells.

        Raises DataError for quotes that are not closed.
        """
        separator = self.between(file_format)
        if file_format == "csv":
            yield from _numbered_csv(path, csv.reader(lines, strict=True, delimiter=separator))
            return
        for number, line in enumerate(lines, 1):
            if line.strip("\r\n"):
                yield number, line.rstrip("\r\n").split(separator)

    def remedy(self, first: Sequence[str], file_format: str) -> str | None:
        """Return what to do if the first row is one cell that contains a usual separator, else None."""
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
                "or set data.format=tsv if the file is separated by tabs and not quoted"
            ) from None
        if cells:
            yield number, cells


def not_utf_8(path: Path, error: UnicodeDecodeError) -> DataError:
    """Return the error for a file that cannot be decoded: its first bad line, and an encoding that fits."""
    with open(path, "rb") as file:
        start = file.read(4)
    for mark, name in MARKS.items():
        if start.startswith(mark):
            return DataError(f"{path}: is {name.upper()}, not UTF-8; convert the file: iconv -f {name} -t utf-8")
    number, sample = _first_undecodable(path)
    for name, language in CANDIDATES.items():
        if _decodes(sample, name):
            remedy = f"convert the file, e.g. iconv -f {name} -t utf-8 if it is {language}, as its bytes allow"
            break
    else:
        remedy = "convert the file from the encoding in which it was written, e.g. by iconv, or fix this line"
    return DataError(f"{path}:{number}: is not UTF-8 ({error.reason}); {remedy}")


def _first_undecodable(path: Path) -> tuple[int, bytes]:
    """Return the number of the first bad line, and the bytes from there on; the decoder knows only a buffer offset."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not _decodes(line, "utf-8"):
                return number, line + lines.read(SAMPLE_BYTES) + lines.readline()
    return 1, b""


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
