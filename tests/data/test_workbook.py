"""Cells of Excel workbooks as the texts of a table."""

import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError
from nlu.data.dialect import Dialect
from nlu.data.reader import Row
from nlu.data.readers import read_rows
from nlu.data.workbook import cell_text, sheet_rows

openpyxl = pytest.importorskip("openpyxl")


def written(path: Path, *rows: list[Any]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, ""), (1.0, "1"), (1, "1"), (0.5, "0.5"), (True, "true"), (date(2026, 1, 2), "2026-01-02"), ("a ", "a "),
     (datetime(2026, 1, 2, 3), "2026-01-02T03:00:00")],
)  # fmt: skip
def test_a_cell_is_the_text_that_a_csv_would_hold(cell: Any, text: str) -> None:
    assert cell_text(cell) == text


def test_rows_have_the_numbers_of_the_sheet_and_short_ones_empty_cells(tmp_path: Path) -> None:
    path = written(tmp_path / "a.xlsx", ["text", "label"], ["a", 1.0], [], ["b"], ["c", "x", "more"])
    found = list(read_rows(path, "auto", {"text": "text", "label": "label"}, None))
    # A note beside a row moves no column.
    assert found == [Row(2, {"text": "a", "label": "1"}), Row(4, {"text": "b", "label": ""}),
                     Row(5, {"text": "c", "label": "x"})]  # fmt: skip


def test_columns_may_be_given_by_number_in_a_sheet_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "a.xlsx", ["a", 1], ["b", 2])
    assert [row.values for row in read_rows(path, "xlsx", {"text": 0, "label": 1}, None)] == [
        {"text": "a", "label": "1"}, {"text": "b", "label": "2"},
    ]  # fmt: skip


def test_cells_of_every_kind_are_read_as_they_were_saved(tmp_path: Path) -> None:
    cells = ["=1+1", datetime(2026, 1, 2, 3), date(2026, 1, 2), True, 0.5, 12345678901234, "end"]
    path = written(tmp_path / "a.xlsx", [f"c{place}" for place in range(7)], cells)
    book = openpyxl.load_workbook(path)
    book.active["A3"] = "joined"
    book.active.merge_cells("A3:B3")
    book.create_chartsheet("chart", 0)
    book.save(path)
    (_, _), (_, own), (number, joined) = sheet_rows(path)
    # A formula that no program has computed yet has no value.
    assert own == [None, *cells[1:]] and [type(cell) for cell in own[3:6]] == [bool, float, int]
    assert (number, joined) == (3, ["joined", *[None] * 6])


def test_a_damaged_workbook_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.xlsx", ["text"], ["a"])
    for part in ("xl/worksheets/sheet1.xml", "xl/workbook.xml"):
        damaged = tmp_path / "damaged.xlsx"
        with zipfile.ZipFile(path) as whole, zipfile.ZipFile(damaged, "w") as other:
            for name in whole.namelist():
                other.writestr(name, whole.read(name)[: 200 if name == part else None])
        with pytest.raises(DataError, match="not an Excel workbook"):
            list(read_rows(damaged, "auto", {"text": "text"}, None))


def test_rows_come_from_the_chosen_sheet_behind_skipped_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.xlsx", ["text"], ["first"])
    book = openpyxl.load_workbook(path)
    for row in (["A report"], ["text"], ["second"]):
        book.create_sheet("2026").append(row) if "2026" not in book.sheetnames else book["2026"].append(row)
    book.save(path)
    for sheet in ("2026", 1):
        dialect = Dialect(sheet=sheet, skip_lines=1)
        assert list(read_rows(path, "auto", {"text": "text"}, None, dialect=dialect)) == [Row(3, {"text": "second"})]
    for sheet, said in (("2062", r"data\.sheet is '2062'; nearest: 2026"), (2, r"counted from 0, but .* has 2 sheets")):
        with pytest.raises(DataError, match=said):
            list(read_rows(path, "auto", {"text": "text"}, None, dialect=Dialect(sheet=sheet)))
