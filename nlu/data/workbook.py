"""Rows of a sheet of a workbook: read by python-calamine, and written as .xlsx by openpyxl (extra `excel`).

Cells keep their types: texts, numbers, dates, booleans.
"""

import io
import json
import math
import numbers
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from nlu.config.errors import DataError, UserError
from nlu.config.nearest import hint
from nlu.config.words import counted, listed
from nlu.data.dialect import PLAIN, Dialect
from nlu.storage.files import json_text

MOST_ROWS = 1_048_576
MOST_CHARACTERS = 32_767
"""Excel's limits of a sheet and of a cell"""
MOST_NUMBER = 10**15
MOST_DIGITS = 15
MOMENTS: dict[str, Callable[[Any], object]] = {
    "datetime": datetime.fromisoformat, "date": date.fromisoformat, "time": time.fromisoformat,
    "timedelta": lambda microseconds: timedelta(microseconds=microseconds),
}  # fmt: skip
"""types that `dumped` writes by name, and how `loaded` reads them"""
ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""characters that a cell cannot hold"""
FIXED_DATE = (1980, 1, 1, 0, 0, 0)
STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""times in docProps/core.xml"""


def sheet_rows(path: Path, dialect: Dialect = PLAIN) -> Iterator[tuple[int, list[object]]]:
    """Yield the number and the cells of each row of the dialect's sheet that is not empty, behind its first lines.

    Empty cells at the end of a row are dropped, then rows are filled up to the length of the first one. A formula
    yields the value that it had when the file was saved. Raises DataError for a file of another format, a protected
    one, or one without this sheet.
    """
    import python_calamine

    try:
        # Given a path, the library would go by the suffix, which standard input lacks.
        with open(path, "rb") as file:
            rows = _sheet(python_calamine.CalamineWorkbook.from_filelike(file), path, dialect.sheet)
    except python_calamine.PasswordError:
        raise DataError(f"{path}: is protected by a password; save it without, or give the rows as csv") from None
    except python_calamine.CalamineError as error:
        raise DataError(f"{path}: not an Excel workbook ({error}); save it as .xlsx, or give the rows as csv") from None
    width = 0
    for number, cells in enumerate(rows[dialect.skip_lines :], 1 + dialect.skip_lines):
        own = list(map(_plain, cells))
        while own and own[-1] is None:
            own.pop()
        if own:
            width = width or len(own)
            yield number, own + [None] * (width - len(own))


def _sheet(book: Any, path: Path, wanted: str | int | None) -> list[list[Any]]:
    """Return the cells of a sheet, which may be hidden; charts are none."""
    from python_calamine import SheetTypeEnum

    names = [sheet.name for sheet in book.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]
    if isinstance(wanted, str) and wanted not in names:
        raise DataError(f"{path}: data.sheet is {wanted!r}; {hint(wanted, names)}; set data.sheet to one of these")
    if isinstance(wanted, int) and wanted >= len(names):
        raise DataError(
            f"{path}: data.sheet is {wanted}, counted from 0, but the workbook has {counted(len(names), 'sheet')} "
            f"({listed(names)}); set data.sheet to a number below {len(names)} or to a name in quotes"
        )
    name = wanted if isinstance(wanted, str) else names[wanted or 0]
    return book.get_sheet_by_name(name).to_python(skip_empty_area=False)


def _plain(cell: object) -> object:
    """Return None for an empty cell, and an integer for a whole number, which Excel stores as a float."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < MOST_NUMBER:
        return int(cell)
    return None if cell == "" else cell


def text_rows(path: Path, dialect: Dialect = PLAIN) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of `sheet_rows` as texts."""
    for number, cells in sheet_rows(path, dialect):
        yield number, list(map(cell_text, cells))


def cell_text(value: object) -> str:
    """Return a cell as it is written in a csv file."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def rule_of_cell(value: object) -> str | None:
    """Return the rule that a value breaks in a cell of a workbook, or None."""
    if isinstance(value, bytes):
        return "is binary, which a cell of Excel cannot hold"
    if isinstance(value, datetime | time) and value.tzinfo is not None:
        return "has a time zone, which a cell of Excel cannot hold"
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return f"is {value}, which a cell of Excel cannot hold"
    has_many = isinstance(value, Decimal) and len(value.normalize().as_tuple().digits) > MOST_DIGITS
    if has_many or (isinstance(value, int | Decimal) and not -MOST_NUMBER <= value <= MOST_NUMBER):
        return f"has more than the {MOST_DIGITS} digits that a cell of Excel holds"
    text = _as_cell(value)
    if not isinstance(text, str):
        is_known = text is None or isinstance(text, int | float | date | time | timedelta)
        return None if is_known else f"is of the type {type(value).__name__}, which a cell of Excel cannot hold"
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text):,} characters, but a cell of Excel holds {MOST_CHARACTERS:,}"
    return "holds a control character, which a cell of Excel cannot" if ILLEGAL.search(text) else None


def dumped(cells: Sequence[object]) -> str:
    """Return valid cells as one line, from which `loaded` restores them with their types."""
    return json.dumps([_typed(cell) for cell in cells], ensure_ascii=False)


def loaded(line: str) -> list[object]:
    """Return the cells of a line that `dumped` wrote."""
    return [
        next(MOMENTS[kind](content) for kind, content in cell.items()) if isinstance(cell, dict) else cell
        for cell in json.loads(line)
    ]


def _typed(cell: object) -> object:
    value = _as_cell(cell)
    if isinstance(value, timedelta):
        return {"timedelta": value // timedelta(microseconds=1)}
    return {type(value).__name__: value.isoformat()} if isinstance(value, date | time) else value


def require_openpyxl() -> None:
    """Raise UserError if openpyxl, which writes workbooks, is not installed."""
    if find_spec("openpyxl") is None:
        raise UserError("output is a workbook, which needs openpyxl; pip install 'nlu[excel]', or give it suffix .csv")


def write_workbook(file: BinaryIO, rows: Iterable[Sequence[object]]) -> None:
    """Write a workbook of one sheet; equal rows give equal bytes. A text that begins with = stays a text."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("rows")
    for row in rows:
        cells = []
        for value in map(_as_cell, row):
            cell = WriteOnlyCell(sheet, value)
            # openpyxl takes a text that begins with = for a formula.
            if isinstance(value, str):
                cell.data_type = "s"
            cells.append(cell)
        sheet.append(cells)
    made = io.BytesIO()
    book.save(made)
    # The library writes the current time into the file.
    with zipfile.ZipFile(made) as stamped, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as plain:
        for name in stamped.namelist():
            content = stamped.read(name)
            if name == "docProps/core.xml":
                content = STAMP.sub(b"1980-01-01T00:00:00Z", content)
            plain.writestr(zipfile.ZipInfo(name, FIXED_DATE), content, zipfile.ZIP_DEFLATED)


def _as_cell(value: object) -> object:
    """Return a value as one of the types that openpyxl can write, or unchanged if none fits."""
    if isinstance(value, list | dict):
        return json_text(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, numbers.Real) and not isinstance(value, int | float):
        return float(value)
    # Subclasses, such as those of pandas, have other names and nanoseconds, which a cell cannot hold.
    if isinstance(value, datetime) and type(value) is not datetime:
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    if isinstance(value, timedelta) and type(value) is not timedelta:
        return timedelta(value.days, value.seconds, value.microseconds)
    return value
