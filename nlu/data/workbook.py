"""Rows of a sheet of a workbook, by python-calamine: of Excel (.xlsx, .xlsm, .xlsb, .xls) or LibreOffice (.ods).

Cells keep their types: texts, numbers, dates, booleans.
"""

from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.config.nearest import hint
from nlu.config.sentences import counted, listed
from nlu.data.dialect import PLAIN, Dialect

MOST_NUMBER = 10**15
"""larger numbers of a sheet are rounded"""


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
