"""The formats of predicted rows: csv, tsv, jsonl, parquet and tables of MaxCompute.

If the output has the format of the input, the original bytes of each row are kept. Otherwise rows are written from
their columns. The rows of a table are uploaded as a parquet file.
"""

import csv
import io
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.nearest import hint
from nlu.config.sentences import counted
from nlu.data.dialect import PLAIN
from nlu.data.fields import SUFFIX_FORMATS
from nlu.data.originals import BOM, NoOriginals, Original, Originals
from nlu.data.windows import CUT
from nlu.inference.cells import (
    Columns,
    OutputFormat,
    PredictedRow,
    VectorColumns,
    listed,
    require_no_more,
    text_of,
    text_of_cell,
)
from nlu.inference.text_vectors import VECTOR
from nlu.metrics.kinds import Cell, Holds
from nlu.storage.files import json_text
from nlu.storage.tables import TableTarget, is_table

if TYPE_CHECKING:
    import pyarrow as pa


FORMATS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".parquet": "parquet"}
NPY = ".npy"


def output_of(
    path: str, source: Originals, columns: Columns | VectorColumns, separator: str, *, keeps: bool = True
) -> OutputFormat:
    """Return the format of an output: by its suffix, or for standard output that of the input if possible.

    Without `keeps`, the output has only the predictions, not the columns of the input. Raises UserError for an unknown
    suffix, and if the input already has a column of the predictions.
    """
    if Path(path).suffix.lower() == NPY:
        if columns.form is None:
            raise UserError(f"output is {path}, which holds vectors only; set vectors=true, or another suffix")
        return Npy(columns.prefix + VECTOR, columns.form.dtype)
    chosen = _format_of(path, source, keeps=keeps)
    if not keeps:
        source = NoOriginals(source)
    if clash := [name for name in columns.holds if name in source.columns]:
        raise UserError(
            f"{source.path} has a column {clash[0]} already; set prefix, which begins the names of new columns, such "
            "as prefix=model_"
        )
    if chosen == "parquet":
        return Parquet(source, columns)
    if chosen == "odps":
        return TableRows(path, source, columns)
    if chosen == "jsonl":
        return _Jsonl(source, columns, separator)
    return _Table(source, columns, separator, chosen)


def _format_of(path: str, source: Originals, *, keeps: bool) -> str:
    if path == "-":
        # Standard output is read by another program as it is written, so only formats of lines are possible.
        return source.file_format if source.file_format in ("csv", "tsv") else "jsonl"
    if is_table(path):
        return "odps"
    suffix = Path(path).suffix.lower()
    chosen = FORMATS.get(suffix)
    if SUFFIX_FORMATS.get(suffix) == "xlsx":
        raise UserError(f"output is {path}, a workbook, which is only read; give it the suffix .csv, which Excel opens")
    if chosen is None:
        raise UserError(
            f"output is {path}, with the unknown suffix {suffix!r}; {hint(suffix, FORMATS)}; give it one of these"
        )
    if keeps and chosen == "parquet" and source.file_format in ("jsonl", "json", "conll"):
        raise UserError(
            f"output is {path}, a parquet file, but records of {source.file_format} may have different fields; give it "
            "the suffix .jsonl"
        )
    return chosen


class _Joined:
    """A format whose pieces are concatenated after a head."""

    def head(self) -> bytes:
        return b""

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        file.write(self.head())
        for path in pieces:
            with open(path, "rb") as piece:
                # In blocks, since the output may be larger than the memory.
                shutil.copyfileobj(piece, file, 1 << 20)


class _Table(_Joined):
    """csv or tsv."""

    def __init__(self, source: Originals, columns: Columns | VectorColumns, separator: str, chosen: str):
        self._source, self._columns, self._separator, self._format = source, columns, separator, chosen
        self._is_kept = source.is_text and source.file_format == chosen
        self._line_end = source.line_end if self._is_kept else "\n"
        dialect = source.dialect if self._is_kept else PLAIN
        self._between, self._quote = dialect.between(chosen), dialect.around(chosen)

    def head(self) -> bytes:
        added = list(self._columns.holds)
        if not self._is_kept:
            # Without the mark Excel takes UTF-8 for the encoding of the machine.
            mark = BOM if self._source.file_format == "xlsx" else ""
            return (mark + self._line([*self._source.columns, *added], "the header")).encode()
        head = self._source.head
        if not self._source.has_header:
            return head.encode()
        return (head.rstrip("\r\n") + self._behind(added, "the header") + self._line_end).encode()

    def piece(self, rows: Sequence[PredictedRow]) -> bytes:
        return "".join(map(self._row, rows)).encode()

    def _row(self, row: PredictedRow) -> str:
        added = [text_of(row.cells[name], self._separator, holds) for name, holds in self._columns.holds.items()]
        if self._is_kept:
            assert isinstance(row.original, str), "rows of a table are kept as texts"
            return row.original.rstrip("\r\n") + self._behind(added, row.place) + self._line_end
        return self._line([*self._cells(row.original, row.place), *added], row.place)

    def require_writable(self, original: Original, place: str) -> None:
        if not self._is_kept:
            self._line(self._cells(original, place), place)
        elif not self._source.has_header:
            count, usual = len(self._source.record(original, place)), len(self._source.columns)
            if count != usual:
                raise DataError(
                    f"{place} has {counted(count, 'column')} where the first row of the file has {usual}, so its "
                    "prediction would stand in another column; give output the suffix .jsonl, or set columns=false"
                )

    def _cells(self, original: Original, place: str) -> list[str]:
        record = self._source.record(original, place)
        require_no_more(record, self._source, place)
        return [text_of_cell(record.get(name)) for name in self._source.columns]

    def _behind(self, cells: list[str], place: str) -> str:
        """Return the text that is appended to the last cell of a row."""
        # The empty first cell gives the separator in front.
        return self._line(["", *cells], place).rstrip("\r\n")

    def _line(self, cells: list[str], place: str) -> str:
        if self._quote is not None:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator=self._line_end, delimiter=self._between, quotechar=self._quote)
            writer.writerow(cells)
            return text.getvalue()
        # tsv is written without quotes, so a cell with one of these would move all cells after it.
        if wrong := [cell for cell in cells if any(mark in cell for mark in f"{self._between}\r\n")]:
            what, suffix = ("a tsv", ".csv or .jsonl") if self._format == "tsv" else ("a csv without quotes", ".jsonl")
            raise DataError(f"{place} holds {wrong[0]!r}, which {what} cannot; give output the suffix {suffix}")
        return self._between.join(cells) + self._line_end


class _Jsonl(_Joined):
    """One object per line."""

    def __init__(self, source: Originals, columns: Columns | VectorColumns, separator: str):
        self._source, self._columns, self._separator = source, columns, separator
        self._is_kept = source.is_text and source.file_format in ("jsonl", "json")

    def head(self) -> bytes:
        return BOM.encode() if self._is_kept and self._source.head == BOM else b""

    def piece(self, rows: Sequence[PredictedRow]) -> bytes:
        return "".join(map(self._row, rows)).encode()

    def _row(self, row: PredictedRow) -> str:
        if self._is_kept:
            assert isinstance(row.original, str), "lines are kept as texts"
            return self._kept(row.original.strip(), row)
        record = self._source.record(row.original, row.place)
        return json_text({**record, **_listed(row)}) + "\n"

    def require_writable(self, original: Original, place: str) -> None:
        if self._is_kept:
            assert isinstance(original, str), "lines are kept as texts"
            # A line that is not JSON is reported as a bad row elsewhere, or is kept as it is.
            with suppress(ValueError, RecursionError):
                self._require_no_clash(json.loads(original), place)
        else:
            self._require_no_clash(self._source.record(original, place), place)

    def _require_no_clash(self, record: object, place: str) -> None:
        names = [*self._columns.holds, self._columns.prefix + CUT]
        if isinstance(record, dict) and (clash := [name for name in names if name in record]):
            raise DataError(f"{place} has a field {clash[0]} already; set prefix, such as prefix=model_")

    def _kept(self, text: str, row: PredictedRow) -> str:
        try:
            record = json.loads(text)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            # Lines without an object stay as they are.
            return f"{text}\n"
        added = json_text(_listed(row))
        # The text of the object stays as it was written: parsing and writing would change numbers such as 1.0e5, and
        # drop all but the last of equal keys.
        inside = text[1:-1].strip()
        return f"{{{inside}{', ' if inside else ''}{added[1:]}\n"


class Parquet:
    """A parquet file. Its pieces are parquet files too."""

    def __init__(self, source: Originals, columns: Columns | VectorColumns):
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._source, self._columns = source, columns
        if source.file_format == "parquet":
            own = list(pq.read_schema(source.path))
        else:
            own = [pa.field(name, pa.string()) for name in source.columns]
        added = [pa.field(name, _arrow_type(holds)) for name, holds in columns.holds.items()]
        # One schema for all pieces: inferred from its own rows, the type of a column could differ from piece to piece,
        # and they could not be joined.
        self._schema = pa.schema([*own, *added])

    def head(self) -> bytes:
        return b""

    def require_writable(self, original: Original, place: str) -> None:
        self._source.record(original, place)

    def piece(self, rows: Sequence[PredictedRow]) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        records = [{**self._own(row), **row.cells} for row in rows]
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(records, schema=self._schema), file)
        return file.getvalue()

    def _own(self, row: PredictedRow) -> dict[str, object]:
        record = self._source.record(row.original, row.place)
        # A column of a sheet may have cells of several types, a column of a parquet file only one.
        is_mixed = self._source.file_format == "xlsx"
        return {name: text_of_cell(cell) for name, cell in record.items()} if is_mixed else record

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(file, self._schema) as writer:
            for path in pieces:
                writer.write_table(pq.read_table(path, schema=self._schema))


class Npy:
    """Vectors alone, as an array of numpy; (rows, width)."""

    def __init__(self, column: str, dtype: str):
        self._column, self._dtype = column, np.dtype("uint8" if dtype == "binary" else dtype)

    def head(self) -> bytes:
        return b""

    def require_writable(self, original: Original, place: str) -> None:
        """Do nothing: the columns of a row are not written."""

    def piece(self, rows: Sequence[PredictedRow]) -> bytes:
        cells = [row.cells[self._column] for row in rows]
        width = next((len(cell) for cell in cells if isinstance(cell, np.ndarray)), 0)
        empty = np.full(width, np.nan if self._dtype.kind == "f" else 0, self._dtype)
        file = io.BytesIO()
        np.save(file, np.stack([cell if isinstance(cell, np.ndarray) else empty for cell in cells]))
        return file.getvalue()

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        arrays = [np.load(path, mmap_mode="r") for path in pieces]
        # A piece in which no row could be encoded has no width.
        shape = sum(map(len, arrays)), max(array.shape[1] for array in arrays)
        np.lib.format.write_array_header_1_0(file, {"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        for array in arrays:
            fill = np.full(shape[1], np.nan if self._dtype.kind == "f" else 0, self._dtype)
            file.write((np.asarray(array) if array.shape[1] else np.tile(fill, (len(array), 1))).tobytes())


class TableRows(Parquet):
    """Rows of a table of MaxCompute, in the parquet file that is uploaded."""

    def __init__(self, address: str, source: Originals, columns: Columns | VectorColumns):
        super().__init__(source, columns)
        self._schema = TableTarget(address, "output").storable(self._schema)

    def require_writable(self, original: Original, place: str) -> None:
        require_no_more(self._source.record(original, place), self._source, place)

    def _own(self, row: PredictedRow) -> dict[str, object]:
        if self._source.file_format == "parquet":
            return super()._own(row)
        record = self._source.record(row.original, row.place)
        return {
            name: None if (cell := record.get(name)) is None else text_of_cell(cell) for name in self._source.columns
        }


def _listed(row: PredictedRow) -> dict[str, Cell]:
    return {name: listed(cell) for name, cell in row.cells.items()}


def _arrow_type(holds: Holds) -> "pa.DataType":
    import pyarrow as pa

    if holds == "lists":
        raise UserError("spans is lists, of numbers and texts, which no column can hold; set spans=start_end")
    ends = [("start", pa.int64()), ("end", pa.int64()), ("label", pa.string()), ("text", pa.string())]
    span = pa.struct([("type", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("text", pa.string())])
    return {
        "text": pa.string(),
        "number": pa.float64(),
        "texts": pa.list_(pa.string()),
        "numbers": pa.list_(pa.float64()),
        "spans": pa.list_(span),
        "spans by start": pa.list_(pa.struct(ends)),
        "lists of numbers": pa.list_(pa.list_(pa.float64())),
        "lists of texts": pa.list_(pa.string()),
        "float32": pa.list_(pa.float32()),
        "float16": pa.list_(pa.float16()),
        "int8": pa.list_(pa.int8()),
        "binary": pa.list_(pa.uint8()),
    }[holds]
