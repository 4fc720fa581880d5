"""Writing rows to a table of MaxCompute.

Rows are sent through the table tunnel in blocks of Arrow batches, which are invisible until the last request, the
commit, shows all of them at once. A file marks that the rows of a command may be in the table. The same command, after
a kill or a lost answer, then counts the rows there and never adds them twice.
"""

import logging
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlu.config.addresses import parse_reference
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.storage.files import write_json
from nlu.storage.progress import download_progress
from nlu.storage.tables import TableAddress, connected, service_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as parquet

log = logging.getLogger(__name__)

BATCH_ROWS = 4096
BLOCK_BYTES = 16 << 20
"""of rows that are sent in one request, and sent again if it fails"""
HINTS = {"odps.sql.type.system.odps2": "true"}
"""projects with the first type system need this for the types int and date"""


class TableTarget:
    """A table, or one partition of it, to be filled. Its methods raise DataError if the service does not respond."""

    def __init__(self, address: str, what: str):
        self._reference = parse_reference(address, what)
        self._address = TableAddress.of(self._reference)
        self.shown, self.name = self._reference.shown, self._address.name
        self._start = f"{what} is {self.shown}"
        """of messages"""

    def require_free(self) -> None:
        """Raise UserError if the table or partition has rows, or if the address does not fit the table."""
        with service_errors(self._reference, "written"):
            if rows := self._rows():
                raise UserError(
                    f"{self._start}, which holds {counted(rows, 'row')}; nothing was written; choose another table or "
                    "partition, or remove these rows"
                )

    def storable(self, schema: "pa.Schema") -> "pa.Schema":
        """Return an Arrow schema with types of MaxCompute, for rows of this schema.

        Raises UserError if a column has a type or name that MaxCompute does not have, and if the table exists with
        other columns.
        """
        import pyarrow as pa

        stored = pa.schema([pa.field(field.name, _stored(field.type)) for field in schema])
        with service_errors(self._reference, "written"):
            self._require_columns(self._columns_of(stored))
        return stored

    def send(self, path: Path, note: Path) -> None:
        """Write the rows of a parquet file to the table, all of them at once; the table is created if necessary.

        `note` is the file that marks that rows in the table may be these. Raises UserError if the table has rows of
        others by now, or if the service rejects these rows.
        """
        import pyarrow.parquet as parquet

        with service_errors(self._reference, "written"):
            file = parquet.ParquetFile(path)
            is_again = note.is_file()
            if is_again and self._rows() == file.metadata.num_rows:
                return
            schema = self._columns_of(file.schema_arrow)
            table = self._odps.create_table(self.name, schema, if_not_exists=True, hints=dict(HINTS))
            self._require_columns(schema)
            if self._address.partition:
                table.create_partition(self._address.partition, if_not_exists=True)
            # A commit of an earlier command may still take effect: then this one replaces its rows.
            session, blocks = self._sent(file, overwrite=is_again)
            # Others may have written in the meantime.
            self.require_free()
            write_json(note, {})
            try:
                session.commit(blocks)
            except Exception:
                # PyODPS passes on all errors of its transport: the commit may have arrived.
                if self._rows() != file.metadata.num_rows:
                    raise

    @cached_property
    def _odps(self) -> Any:
        return connected(self._reference, self._address)

    def _table(self) -> Any:
        """Return the table, None if it does not exist."""
        return self._odps.get_table(self.name) if self._odps.exist_table(self.name) else None

    def _rows(self) -> int:
        """Return the number of rows that the tunnel would give, since the table's own count may be out of date."""
        from odps.tunnel import TableTunnel

        table, partition = self._table(), self._address.partition
        if table is None or (partition and not table.exist_partition(partition)):
            return 0
        tunnel = TableTunnel(self._odps)
        return int(tunnel.create_download_session(self.name, partition_spec=partition, async_mode=False).count)

    def _columns_of(self, schema: "pa.Schema") -> Any:
        """Return the table schema for rows of an Arrow schema."""
        from odps.models import TableSchema
        from odps.tunnel.io.types import arrow_type_to_odps_type
        from odps.types import Column, Partition

        columns = []
        for field in schema:
            if not re.fullmatch(r"\w+", field.name):
                raise UserError(
                    f"{self._reference.what} is a table, but {field.name!r} cannot name a column there: use letters, "
                    "digits and _; rename the column, or give output the suffix .parquet"
                )
            try:
                columns.append(Column(field.name, arrow_type_to_odps_type(field.type)))
            except TypeError:
                raise UserError(
                    f"{self._start}, but column {field.name} holds {field.type}, a type that MaxCompute does not have; "
                    "give output the suffix .parquet"
                ) from None
        return TableSchema(columns=columns, partitions=[Partition(key, "string") for key in self._address.keys])

    def _require_columns(self, wanted: Any) -> None:
        """Raise UserError if the table exists without exactly these columns, in any order."""
        table = self._table()
        if table is None:
            return
        there, ours = (_types_of(schema.simple_columns) for schema in (table.table_schema, wanted))
        for name in {**there, **ours}:
            if there.get(name) != ours.get(name):
                raise UserError(
                    f"{self._start}, where column {name} is {there.get(name, 'absent')}, but the rows have "
                    f"{ours.get(name, 'no such column')}; choose another table, which is created if it does not exist"
                )

    def _sent(self, file: "parquet.ParquetFile", *, overwrite: bool) -> tuple[Any, list[int]]:
        """Send all rows in blocks; returns the upload, which is not committed yet, and the numbers of its blocks."""
        from odps.tunnel import TableTunnel

        session = TableTunnel(self._odps).create_upload_session(
            self.name, partition_spec=self._address.partition, overwrite=overwrite
        )
        log.info("sending %s, %s", self.shown, counted(file.metadata.num_rows, "row"))
        with download_progress(f"{self.name}, rows", file.metadata.num_rows) as advance:
            with session.open_arrow_writer(buffer_size=BLOCK_BYTES) as writer:
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    writer.write(batch)
                    advance(batch.num_rows)
        return session, list(writer.get_blocks_written())


def _types_of(columns: Iterable[Any]) -> dict[str, str]:
    """Return the type of each column in a uniform notation."""
    return {column.name.lower(): str(column.type).lower().replace("`", "") for column in columns}


def _stored(kind: "pa.DataType") -> "pa.DataType":
    """Return an Arrow type of MaxCompute that holds all values of `kind`, or `kind` itself if MaxCompute lacks one."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _stored(kind.value_type)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if kind in (pa.uint8(), pa.uint16(), pa.uint32()):
        return pa.int64()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_stored(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _stored(field.type)) for field in kind])
    return kind
