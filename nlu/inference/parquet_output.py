"""Predicted rows as a parquet file, and as the parquet file that is uploaded to a table of MaxCompute."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from nlu.config.errors import UserError
from nlu.data.originals import Original, Originals
from nlu.inference.cells import Columns, PredictedRow, require_no_more, text_of_cell
from nlu.metrics.kinds import Holds
from nlu.storage.table_writing import TableTarget

if TYPE_CHECKING:
    import pyarrow as pa


class Parquet:
    """A parquet file. Its pieces are parquet files too."""

    def __init__(self, source: Originals, columns: Columns):
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


class TableRows(Parquet):
    """Rows of a table of MaxCompute, in the parquet file that is uploaded."""

    def __init__(self, address: str, source: Originals, columns: Columns):
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
    }[holds]
