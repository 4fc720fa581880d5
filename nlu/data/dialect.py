"""How a file is written: separator and quotes of cells, lines before the first row, sheet, and character encoding."""

import codecs
import csv
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Self

from nlu.config.errors import DataError, UserError
from nlu.config.sentences import called
from nlu.config.types import ConfigLike
from nlu.data.reader import WHOLE_ROW, BadRow, Reader
from nlu.storage.locations import plain_name

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

OWN = "own"
"""the format of files that `data.reader` reads"""
SEPARATED_BY = {"csv": ",", "tsv": "\t"}
"""the separator of each format, unless another one is set"""
QUOTED_BY = {"csv": '"', "tsv": None}
"""the quote character of each format, unless another one is set"""
SEPARATORS = {"\t": "tsv", ",": "csv", ";": None, "|": None}
"""the usual separators of tables, and the format that has each"""
MAX_CELL = 1 << 24
"""characters of a csv cell; without a limit, unclosed quotes would read the rest of the file as one cell"""
# A limit of the csv module for the whole process.
csv.field_size_limit(MAX_CELL)
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""byte order marks; those of UTF-32 come first, because they begin like those of UTF-16"""
CANDIDATES = {"gb18030": "Chinese", "cp1252": "Western European"}
"""other usual encodings; the stricter one comes first, because cp1252 decodes almost any bytes"""
SAMPLE_BYTES = 1 << 20
LEAST_FOREIGN = 0.1
"""the share of lines that are not UTF-8 from which a file is in another encoding"""
MOST_LINES = 1000
"""lines of a row in whose quotes line ends are believed, if rows may be left out"""


@dataclass(frozen=True)
class Dialect:
    """How a file is written. Raises UserError for an invalid separator, quote or sheet."""

    separator: str | None = None
    """the character between two cells of csv or tsv; None: that of the format"""
    quote: str | None = None
    """the character around cells of csv or tsv that may contain separators; "": none; None: that of the format"""
    skip_lines: int = 0
    """lines at the start of each file that are not read"""
    sheet: str | int | None = None
    """name of the sheet of a workbook, or its number from 0; None: the first one"""
    records: str | None = None
    """where the rows of a JSON object are, as a dotted name; None: in its only list of objects"""
    reader: Reader | None = None
    """what reads files of a format of the user's own"""
    skips: bool = field(default=False, compare=False)
    """whether a row that cannot be read is left out instead of ending the command"""

    def __post_init__(self) -> None:
        separator = self.separator
        if separator is not None and (len(separator) != 1 or separator in '"\r\n' or separator.isalnum()):
            raise UserError(
                f"data.separator is {separator!r} but must be one character that separates cells, such as ; or |; set "
                "it to one, or leave it out for the comma of csv and the tab of tsv"
            )
        quote = self.quote
        if quote and (len(quote) != 1 or quote.isalnum() or quote.isspace() or quote == separator):
            raise UserError(
                f"data.quote is {quote!r} but must be one character around cells, such as ' or \", and not the "
                'separator; set it to one, to "" for none, or leave it out'
            )
        if isinstance(self.sheet, int) and self.sheet < 0:
            raise UserError(f"data.sheet is {self.sheet}, but sheets are counted from 0; set it to 0 or more")

    @classmethod
    def of(cls, values: ConfigLike) -> Self:
        """Return the dialect of a configuration's keys; those that it lacks or that are None have their defaults."""
        return cls(**{key: value for key in KEYS if (value := values.get(key)) is not None})

    def settings(self) -> dict[str, object]:
        """Return the separator, and the other settings that are not the default, for a fingerprint."""
        changed = {key: value for key in KEYS if (value := getattr(self, key)) != getattr(PLAIN, key)}
        return {"separator": self.separator, **changed}

    @property
    def errors(self) -> str:
        """What becomes of bytes that are not UTF-8: an error, or characters that no text may have."""
        return "surrogateescape" if self.skips else "strict"

    def between(self, file_format: str) -> str:
        """Return the separator of a file in this format."""
        return self.separator or SEPARATED_BY[file_format]

    def around(self, file_format: str) -> str | None:
        """Return the quote character of a file in this format; None: quotes are ordinary characters."""
        return (QUOTED_BY.get(file_format) if self.quote is None else self.quote) or None

    def fits(self, file_format: str, cells: Sequence[object], width: int, most: int, *, header: bool) -> bool:
        """Return whether a row of a table has the wanted columns, up to number `most`; the first row has `width` cells.

        Without header and quotes, rows may have further columns at their end, and so may those of a sheet. Elsewhere
        more cells are a separator within a text, unless they are empty.
        """
        if file_format not in SEPARATED_BY or not header and self.around(file_format) is None:
            return len(cells) > most
        return len(cells) >= width and not any(cells[width:])

    def lines(self, file: Iterator[str]) -> Iterator[str]:
        """Return the lines of an open file behind those that are not read."""
        return islice(file, self.skip_lines, None)

    def csv_reader(self, file_format: str, lines: Iterable[str]) -> "CsvReader":
        """Return a `csv.reader` of a file whose cells have quotes."""
        return csv.reader(lines, strict=True, delimiter=self.between(file_format), quotechar=self.around(file_format))

    def cells(self, file_format: str, path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str] | BadRow]]:
        """Yield the number of the first line of each row that is not empty, and its cells.

        `lines` are those behind the lines that are not read. Quotes that are not closed are a BadRow, if `skips` is
        true and they are not those of the first row, and the next line is another row; else they raise DataError.
        """
        if self.around(file_format) is not None:
            yield from self._quoted(file_format, path, iter(lines))
            return
        separator = self.between(file_format)
        # Without quotes a line is a row, and the csv module is of no use.
        for number, line in enumerate(lines, 1 + self.skip_lines):
            if line.strip("\r\n"):
                yield number, line.rstrip("\r\n").split(separator)

    def _quoted(self, file_format: str, path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str] | BadRow]]:
        own: list[str] = []
        """the lines of the row that is read"""
        again: deque[str] = deque()

        def fed() -> Iterator[str]:
            while (line := again.popleft() if again else next(lines, None)) is not None:
                own.append(line)
                if self.skips and len(own) > MOST_LINES:
                    raise csv.Error(f"no quote ends it in {MOST_LINES:,} lines")
                yield line

        reader = self.csv_reader(file_format, fed())
        number, first = 1 + self.skip_lines, True
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if first or not self.skips:
                    raise DataError(
                        f"{path}:{number}: the quotes of this row do not close ({error}); fix the row, set "
                        'data.quote="" if quotes are ordinary characters, data.format=tsv if tabs separate the cells, '
                        "or data.on_bad_row=skip to leave such rows out"
                    ) from None
                yield (
                    number,
                    BadRow(number, WHOLE_ROW, own[0].rstrip("\r\n"), f"has quotes that do not close ({error})"),
                )
                # What seemed to be within its quotes is read again, as rows.
                again.extendleft(reversed(own[1:]))
                del own[1:]
                reader = self.csv_reader(file_format, fed())
                cells = []
            # A quoted cell may have line ends in it: the row is named by its first line.
            if cells:
                yield number, cells
            number, first = number + len(own), False
            own.clear()

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
KEYS = tuple(item.name for item in fields(Dialect) if item.name not in ("reader", "skips"))
"""keys of the group data that make a dialect"""


def not_utf_8(path: Path, error: UnicodeDecodeError) -> DataError:
    """Return the error for a file that cannot be decoded: its first bad line, and an encoding that fits."""
    with open(path, "rb") as file:
        start = file.read(4)
    # UTF-16 is recognized by its mark, since almost any even number of bytes is valid UTF-16.
    for mark, name in MARKS.items():
        if start.startswith(mark):
            return DataError(f"{path}: is {name.upper()}, not UTF-8; convert the file: {_converting(path, name)}")
    number, sample = _first_undecodable(path)
    remedy = "convert the file from the encoding in which it was written, e.g. by iconv, or fix this line"
    leave_out = "or set data.on_bad_row=skip to leave such rows out"
    bad, good, _ = _counts(_head(path) + sample)
    # The sample ends with a whole line, so it does not end within a character.
    language = next((name for name in CANDIDATES if _decodes(sample, name)), None)
    if bad < good:
        remedy = f"fix this line, {leave_out}"
    elif language is not None:
        command = _converting(path, language)
        remedy = f"convert the file, if it is {CANDIDATES[language]}, as its bytes allow: {command}"
        remedy += "" if _is_foreign(_head(path)) else f", {leave_out}"
    return DataError(f"{path}:{number}: is not UTF-8 ({error.reason}); {remedy}")


def _converting(path: Path, encoding: str) -> str:
    """Return the command that converts a file, which is unpacked first, to UTF-8 beside it."""
    shown = plain_name(called(path))
    plain = Path(shown.rpartition("/")[2] if "://" in shown else shown)
    new = plain.with_name(f"{plain.stem}.utf-8{plain.suffix}")
    return f"iconv -f {encoding} -t utf-8 {quote(str(plain))} > {quote(str(new))}"


def require_utf_8(path: Path) -> None:
    """Raise UnicodeDecodeError if a file is in another encoding, and does not only have bad lines."""
    if _is_foreign(sample := _head(path)):
        sample.decode()


def _is_foreign(sample: bytes) -> bool:
    bad, good, rest = _counts(sample)
    return bad >= good and bad > LEAST_FOREIGN * (bad + good + rest)


def _counts(sample: bytes) -> tuple[int, int, int]:
    """Return the numbers of lines that are not UTF-8, that are, beyond ASCII, and that are ASCII."""
    lines = sample.splitlines()
    beyond = [line for line in lines if not line.isascii()]
    good = sum(_decodes(line, "utf-8") for line in beyond)
    return len(beyond) - good, good, len(lines) - len(beyond)


def _head(path: Path) -> bytes:
    with open(path, "rb") as lines:
        return lines.read(SAMPLE_BYTES) + lines.readline()


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
