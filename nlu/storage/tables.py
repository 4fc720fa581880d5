"""Tables of MaxCompute, by PyODPS: odps://PROJECT/tables/NAME[/KEY=VALUE...].

A table is read by Arrow into the cache as parquet, and fetched again when the service says that its data changed.

Rows are written through the table tunnel in blocks of Arrow batches, which are invisible until the last request, the
commit, shows all of them at once. A file marks that the rows of a command may be in the table. The same command, after
a kill or a lost answer, then counts the rows there and never adds them twice.

The keys of the account come from ALIBABA_CLOUD_ACCESS_KEY_ID and _SECRET, the address of the service from
ODPS_ENDPOINT, and the address of the tunnel, if the service does not give it, from ODPS_TUNNEL_ENDPOINT. Read in PyODPS
0.13.2; tested only against a fake service.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlu.config.addresses import Reference, parse_reference
from nlu.config.errors import DataError, UserError
from nlu.config.redaction import ENDPOINT, HIDDEN, KEY, PLACE, SECRET, TOKEN, name_of
from nlu.config.sentences import counted
from nlu.storage.cache import Entry
from nlu.storage.files import write_json
from nlu.storage.role_keys import has_role, role_keys
from nlu.storage.transfer_in_parts import download_progress

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as parquet


log = logging.getLogger(__name__)

VARIABLES = (name_of("alibaba cloud", KEY), name_of("alibaba cloud", SECRET), name_of("maxcompute", ENDPOINT))
TUNNEL = name_of("maxcompute", PLACE)
ADDRESS = re.compile(r"odps://(?P<project>[^/]+)/tables/(?P<name>[^/=]+)(?P<parts>(/[^/=]+=[^/]+)*)/?")

BATCH_ROWS = 4096
BLOCK_BYTES = 16 << 20
"""of rows that are sent in one request, and sent again if it fails"""
HINTS = {"odps.sql.type.system.odps2": "true"}
"""projects with the first type system need this for the types int and date"""


@dataclass(frozen=True)
class TableAddress:
    """A table, or one partition of it."""

    project: str
    name: str
    partition: str | None
    """in MaxCompute's notation: pt=20260101,city=hz"""

    @classmethod
    def of(cls, reference: Reference) -> "TableAddress":
        """Parse a reference. Raises UserError for a malformed one and for one with a sha256."""
        match = ADDRESS.fullmatch(reference.location)
        if match is None or reference.sha256 is not None:
            raise UserError(
                f"{reference.what} {reference.shown} is not a table; write odps://PROJECT/tables/NAME, with /KEY=VALUE "
                "for each part of a partition, and without #sha256"
            )
        return cls(match["project"], match["name"], match["parts"].strip("/").replace("/", ",") or None)

    @property
    def keys(self) -> list[str]:
        """The names of the parts of the partition."""
        return [part.partition("=")[0] for part in (self.partition or "").split(",") if part]


def fetch_table(reference: Reference) -> Path:
    """Return the rows of a table as a parquet file in the cache.

    Raises DataError if the table does not exist or cannot be read, UserError for a malformed address, a missing
    variable or a package that is not installed.
    """
    address = TableAddress.of(reference)
    odps = connected(reference, address)
    with service_errors(reference, "read"):
        table = odps.get_table(address.name)
        held = table.get_partition(address.partition) if address.partition else table
        held.reload()
        entry = Entry.of("odps", reference.location, str(held.last_data_modified_time))
        return entry.find() or entry.fill(reference, lambda folder: _download(odps, address, folder))


def connected(reference: Reference, address: TableAddress) -> Any:
    """Return PyODPS's client of the project. Raises UserError for a missing variable or package."""
    by_role = has_role(VARIABLES[0])
    if absent := [name for name in VARIABLES if not (by_role and name in VARIABLES[:2] or os.environ.get(name))]:
        raise UserError(f"{reference.what} {reference.shown} needs {', '.join(absent)} in the environment; set them")
    tunnel = {"tunnel_endpoint": os.environ[TUNNEL]} if os.environ.get(TUNNEL) else {}
    try:
        return client_of(address.project, os.environ[VARIABLES[2]], **tunnel)
    except ImportError as error:
        raise UserError(
            f"{reference.what} {reference.shown} needs a package that is missing ({error}); pip install 'nlu[pai]'"
        ) from None


def client_of(project: str, endpoint: str, **more: str) -> Any:
    """Return PyODPS's client of a project, with the keys of the environment or those of a job's role."""
    from odps import ODPS
    from odps.accounts import CloudAccount, CredentialProviderAccount, StsAccount

    id, secret, token = (os.environ.get(name_of("alibaba cloud", role)) for role in (KEY, SECRET, TOKEN))
    if has_role(VARIABLES[0]):
        account = CredentialProviderAccount(role_keys())
    else:
        account = StsAccount(id, secret, token) if token else CloudAccount(id, secret)
    return ODPS(account=account, project=project, endpoint=endpoint, **more)


def _download(odps: Any, address: TableAddress, folder: Path) -> Path:
    """Write the rows to parquet batch by batch: memory does not grow with their number."""
    import pyarrow.parquet as parquet
    from odps.tunnel import TableTunnel
    from odps.tunnel.io.types import odps_schema_to_arrow_schema

    session = TableTunnel(odps).create_download_session(
        address.name, partition_spec=address.partition, async_mode=False
    )
    path = folder / f"{address.name}.parquet"
    with (
        parquet.ParquetWriter(path, odps_schema_to_arrow_schema(session.schema)) as writer,
        download_progress(f"{address.name}, rows", session.count) as advance,
    ):
        # An empty table sends no data, which PyODPS's reader treats as an error.
        with session.open_arrow_reader(0, session.count) if session.count else nullcontext([]) as reader:
            for batch in reader:
                writer.write_batch(batch)
                advance(batch.num_rows)
    if (rows := parquet.read_metadata(path).num_rows) != session.count:
        raise OSError(f"{rows} of {session.count} rows came")
    return path


@contextmanager
def service_errors(reference: Reference, done: str) -> Iterator[None]:
    """Raise DataError, without keys, for an error of PyODPS, urllib3 or pyarrow: the table cannot be `done`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # Messages of the service may repeat the request with its signature.
        said = str(error)
        for value in filter(None, (os.environ.get(name) for name in VARIABLES[:2])):
            said = said.replace(value, HIDDEN)
        said = " ".join(said.split())[:500]
        named = f"{reference.what} {reference.shown}"
        status = getattr(error, "status_code", None)
        if status == 404 or type(error).__name__ == "NoSuchObject":
            raise DataError(f"{named} does not exist ({said}); correct project, name and partition") from None
        rights = f"{VARIABLES[0]}, {VARIABLES[1]} and the permission to have it {done}"
        remedy = rights if status in (401, 403) else f"{VARIABLES[2]} and {TUNNEL}, or try again"
        raise DataError(f"{named} cannot be {done}: {said}; check {remedy}") from None


def is_table(text: str) -> bool:
    """Return whether a text is the address of a table of MaxCompute."""
    return text.lower().startswith("odps://")


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
