"""Writing rows to a table of MaxCompute.

Rows are sent through the table tunnel in blocks of Arrow batches, which are invisible until the last request, the
commit, shows all of them at once. The upload to be committed is noted in a file before its commit, so that the same
command, after any kill or lost response, asks what became of it and never adds the rows twice.
"""

import json
import logging
import re
import time
from collections.abc import Iterable
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.storage.backend import download_progress
from nlu.storage.files import write_json
from nlu.storage.places import parse_reference
from nlu.storage.tables import TableAddress, connected, service_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as parquet

log = logging.getLogger(__name__)

BATCH_ROWS = 4096
BLOCK_BYTES = 16 << 20
"""of rows that are sent in one request, and sent again if it fails"""
LONGEST_NAME = 128
CLOSING_S = 120.0
HINTS = {"odps.sql.type.system.odps2": "true"}
"""projects with the first type system need this for the types int and date"""


class _Note(TypedDict):
    """What is written to disk before a commit: the upload, and the numbers of its blocks."""

    upload: str
    blocks: list[int]


class _Upload(Protocol):
    """What is used of PyODPS's session of an upload."""

    id: str
    status: Enum

    def commit(self, blocks: list[int]) -> None: ...

    def reload(self) -> None: ...


class _Column(Protocol):
    """What is used of PyODPS's column."""

    name: str
    type: object


class TableTarget:
    """A table, or one partition of it, to be filled. Its methods raise DataError if the service does not respond."""

    def __init__(self, address: str, what: str):
        self._reference = parse_reference(address, what)
        self._address = TableAddress.of(self._reference)
        self.shown, self.name = self._reference.shown, self._address.name
        self._start = f"{what} is {self.shown}"
        """of messages"""
        if wrong := re.search(r"[^\w.:+ -]", (self._address.partition or "").replace("=", "").replace(",", "")):
            raise UserError(f"{what} {self.shown} has {wrong[0]!r} in the name of a partition; write it without")

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

        `note` is the file that records the upload to be committed. If it exists, that upload is completed, if possible.
        Raises UserError if the table has rows of others by now, or if the service rejects these rows.
        """
        import pyarrow.parquet as parquet

        with service_errors(self._reference, "written"):
            file = parquet.ParquetFile(path)
            if note.is_file() and self._is_committed(json.loads(note.read_text()), file.metadata.num_rows):
                return
            schema = self._columns_of(file.schema_arrow)
            table = self._odps.create_table(self.name, schema, if_not_exists=True, hints=dict(HINTS))
            self._require_columns(schema)
            if self._address.partition:
                table.create_partition(self._address.partition, if_not_exists=True)
            # Sent, noted, committed, in this order: before the note nothing is visible, and after it the upload can be
            # asked for its state.
            session, blocks = self._sent(file)
            # Others may have written in the meantime.
            self.require_free()
            write_json(note, {"upload": session.id, "blocks": blocks})
            _commit(session, blocks)

    @cached_property
    def _odps(self) -> Any:
        return connected(self._reference, self._address)

    def _table(self) -> Any:
        """Return the table, None if it does not exist. Raises UserError if it has other partitions."""
        from odps.errors import NoSuchObject

        table = self._odps.get_table(self.name)
        try:
            table.reload()
        except NoSuchObject:
            return None
        keys = [column.name for column in table.table_schema.partitions]
        if keys != self._address.keys:
            written = "".join(f"/{key}=VALUE" for key in keys)
            has = f"the partitions {written}" if keys else "no partition"
            raise UserError(
                f"{self._start}, but the table has {has}; write "
                f"odps://{self._address.project}/tables/{self.name}{written}"
            )
        return table

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
            if not re.fullmatch(r"\w+", field.name) or len(field.name.encode()) > LONGEST_NAME:
                raise UserError(
                    f"{self._reference.what} is a table, but {field.name!r} cannot name a column there: use letters, "
                    f"digits and _, at most {LONGEST_NAME} bytes; rename the column, or give output the suffix .parquet"
                )
            try:
                columns.append(Column(field.name, arrow_type_to_odps_type(field.type)))
            except TypeError:
                raise UserError(
                    f"{self._start}, but column {field.name} holds {field.type}, a type that MaxCompute does not have; "
                    "give output the suffix .parquet"
                ) from None
        keys = self._address.keys
        names = [name.lower() for name in (*(column.name for column in columns), *keys)]
        if doubled := [name for name in names if names.count(name) > 1]:
            raise UserError(
                f"{self._start}, but {doubled[0]} would be the name of two columns, since MaxCompute ignores case; "
                "rename one, or set prefix"
            )
        return TableSchema(columns=columns, partitions=[Partition(key, "string") for key in keys])

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

    def _sent(self, file: "parquet.ParquetFile") -> tuple[_Upload, list[int]]:
        """Send all rows in blocks; returns the upload, which is not committed yet, and the numbers of its blocks."""
        from odps.tunnel import TableTunnel

        session = TableTunnel(self._odps).create_upload_session(self.name, partition_spec=self._address.partition)
        log.info("sending %s, %s", self.shown, counted(file.metadata.num_rows, "row"))
        with download_progress(f"{self.name}, rows", file.metadata.num_rows) as advance:
            with session.open_arrow_writer(buffer_size=BLOCK_BYTES) as writer:
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    writer.write(batch)
                    advance(batch.num_rows)
        return session, list(writer.get_blocks_written())

    def _is_committed(self, noted: _Note, rows: int) -> bool:
        """Complete the upload whose commit an earlier command began; returns False if none of its rows exist."""
        from odps.errors import ODPSError
        from odps.tunnel import TableTunnel

        tunnel, partition = TableTunnel(self._odps), self._address.partition
        try:
            session = tunnel.create_upload_session(self.name, partition_spec=partition, upload_id=noted["upload"])
        except ODPSError as error:
            log.info("upload %s is not known any more (%s)", noted["upload"], type(error).__name__)
            session = None
        if session is not None and _state(session) in ("closed", "closing", "normal"):
            _commit(session, noted["blocks"])
            return True
        there = self._rows()
        # The service forgets an upload after some time. Then only the number of rows says whether it was committed.
        if there not in (0, rows):
            self.require_free()
        return there == rows


def _commit(session: _Upload, blocks: list[int]) -> None:
    """Make the sent rows visible. If the response is lost, the upload is asked for its state."""
    if _state(session) == "normal":
        try:
            session.commit(blocks)
        except Exception:
            # PyODPS passes on all errors of its transport. Only the service knows whether the commit arrived.
            session.reload()
            if _state(session) not in ("closing", "closed"):
                raise
    # The service is working and nothing failed, so it is polled at a fixed interval.
    until_s = time.monotonic() + CLOSING_S
    while _state(session) == "closing" and time.monotonic() < until_s:
        time.sleep(1.0)
        session.reload()
    if _state(session) != "closed":
        raise OSError(f"upload {session.id} is {_state(session)} after its commit; give the same command again")


def _state(session: _Upload) -> str:
    return str(session.status.value).lower()


def _types_of(columns: Iterable[_Column]) -> dict[str, str]:
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
