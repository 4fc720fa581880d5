"""Rows of Excel workbooks (.xlsx), read and written by openpyxl, which the extra `excel` brings.

The first sheet counts. Cells keep their types: texts, numbers, dates, true and false.
"""

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import ParseError

from nlu.config.errors import DataError, UserError

MOST_ROWS = 1_048_576
MOST_CHARACTERS = 32_767
"""of a sheet and of a cell, by Excel itself"""
MOST_NUMBER = 10**15
MOMENTS: dict[str, Any] = {"datetime": datetime, "date": date, "time": time}
ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""what no cell may hold"""
FIXED_DATE = (1980, 1, 1, 0, 0, 0)
STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""times in docProps/core.xml"""


def require_openpyxl(path: Path) -> None:
    """Raise UserError where the package is missing that a workbook needs."""
    if find_spec("openpyxl") is None:
        raise UserError(f"{path} needs openpyxl; install it with pip install 'nlu[excel]', or use csv")


def sheet_rows(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number and the cells of each row of the first sheet that is not empty, none shorter than the first.

    Empty cells at the end of a row count as absent.

    Formulas are given by the values that they had when the file was saved. Raises DataError where it is no workbook,
    and UserError where openpyxl is missing.
    """
    require_openpyxl(path)
    import openpyxl

    try:
        # Of a path the library looks at the suffix, which standard input has not.
        with open(path, "rb") as file:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheet: Any = book.worksheets[0]
            # What a program wrote of a sheet's extent may be wrong.
            sheet.reset_dimensions()
            yield from _rows(sheet)
    except (zipfile.BadZipFile, ParseError, KeyError, IndexError, ValueError, OSError) as error:
        raise DataError(f"{path}: not an Excel workbook ({error}); save it as .xlsx, or give the rows as csv") from None


def _rows(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    width = 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        own = list(cells)
        while own and own[-1] is None:
            own.pop()
        if own:
            width = width or len(own)
            yield number, own + [None] * (width - len(own))


def text_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the same as the texts that would stand in a csv."""
    for number, cells in sheet_rows(path):
        yield number, list(map(cell_text, cells))


def cell_text(value: Any) -> str:
    """Return a cell as the text that stands in its place in a csv."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        # Excel knows no whole numbers.
        return str(int(value))
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def rule_of_cell(value: Any) -> str | None:
    """Return the rule that a value breaks as a cell of a workbook, or None."""
    if isinstance(value, bytes):
        return "is binary, which a cell of Excel cannot hold"
    if isinstance(value, datetime | time) and value.tzinfo is not None:
        return "has a time zone, which a cell of Excel cannot hold"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, which a cell of Excel cannot hold"
    if isinstance(value, int) and abs(value) > MOST_NUMBER:
        return "has more than the 15 digits that a cell of Excel holds"
    text = _as_cell(value)
    if not isinstance(text, str):
        return None
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text):,} characters, but a cell of Excel holds {MOST_CHARACTERS:,}"
    return "holds a control character, which a cell of Excel cannot" if ILLEGAL.search(text) else None


def dumped(cells: Sequence[Any]) -> str:
    """Return cells that break no rule as one line, from which `loaded` gets them back with their types."""
    return json.dumps([_typed(cell) for cell in cells], ensure_ascii=False)


def loaded(line: str) -> list[Any]:
    """Return the cells of such a line."""
    return [
        next(MOMENTS[kind].fromisoformat(text) for kind, text in cell.items()) if isinstance(cell, dict) else cell
        for cell in json.loads(line)
    ]


def _typed(cell: Any) -> Any:
    value = _as_cell(cell)
    return {type(value).__name__: value.isoformat()} if isinstance(value, date | time) else value


def write_workbook(file: BinaryIO, rows: Iterable[Sequence[Any]]) -> None:
    """Write a workbook of one sheet; equal rows give equal bytes. A text that begins with = is no formula."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("rows")
    for row in rows:
        cells = []
        for value in map(_as_cell, row):
            cell = WriteOnlyCell(sheet, value)
            if isinstance(value, str):
                cell.data_type = "s"
            cells.append(cell)
        sheet.append(cells)
    made = io.BytesIO()
    book.save(made)
    # The library puts the time into it.
    with zipfile.ZipFile(made) as stamped, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as plain:
        for name in stamped.namelist():
            content = stamped.read(name)
            if name == "docProps/core.xml":
                content = STAMP.sub(b"1980-01-01T00:00:00Z", content)
            plain.writestr(zipfile.ZipInfo(name, FIXED_DATE), content, zipfile.ZIP_DEFLATED)


def _as_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
