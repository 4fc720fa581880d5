"""Tables of MaxCompute, by PyODPS: odps://PROJECT/tables/NAME[/KEY=VALUE...].

A table is read by Arrow into the cache as parquet, and fetched again when the service says that its data changed. Rows
are written through the table tunnel in blocks of Arrow batches, which are invisible until the last request, the commit,
shows all of them at once. The upload that is about to be committed is noted before, so that the same command, after any
kill or lost answer, asks what became of it and never adds the rows twice.

The keys of the account come from ALIBABA_CLOUD_ACCESS_KEY_ID and _SECRET, the address of the service from
ODPS_ENDPOINT, and the address of the tunnel, if the service does not give it, from ODPS_TUNNEL_ENDPOINT. Read in PyODPS
0.13.2; tested only against a fake service.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from nlu.config.errors import DataError, UserError
from nlu.config.words import counted
from nlu.storage.backend import download_progress
from nlu.storage.cache import Entry
from nlu.storage.environment import ENDPOINT, KEY, PLACE, SECRET, name_of
from nlu.storage.files import write_json
from nlu.storage.places import Reference, parse_reference

VARIABLES = (name_of("alibaba cloud", KEY), name_of("alibaba cloud", SECRET), name_of("maxcompute", ENDPOINT))
TUNNEL = name_of("maxcompute", PLACE)
ADDRESS = re.compile(r"odps://(?P<project>[^/]+)/tables/(?P<name>[^/=]+)(?P<parts>(/[^/=]+=[^/]+)*)/?")


@dataclass(frozen=True)
class Named:
    """A table, or one partition of it."""

    project: str
    name: str
    partition: str | None
    """as MaxCompute writes it: pt=20260101,city=hz"""


def fetch_table(reference: Reference) -> Path:
    """Return the rows of a table as a parquet file. Raises DataError for what is no table or cannot be read, UserError
    for a malformed address, a missing variable or a missing package."""
    named = table_of(reference)
    odps = connected(reference, named)
    try:
        table = odps.get_table(named.name)
        held: Any = table.get_partition(named.partition) if named.partition else table
        held.reload()
        entry = Entry.of("odps", reference.location, str(held.last_data_modified_time))
        return entry.find() or entry.fill(reference, lambda folder: _download(odps, named, folder))
    except (UserError, DataError):
        raise
    except Exception as error:
        raise failure(reference, error) from None


def table_of(reference: Reference) -> Named:
    """Return what an address names. Raises UserError for one that is malformed or has a sha256."""
    match = ADDRESS.fullmatch(reference.location)
    if match is None or reference.sha256 is not None:
        raise UserError(
            f"{reference.what} {reference.shown} is no table; write odps://PROJECT/tables/NAME, with /KEY=VALUE for "
            "each part of a partition, and without #sha256"
        )
    return Named(match["project"], match["name"], match["parts"].strip("/").replace("/", ",") or None)


def connected(reference: Reference, named: Named) -> Any:
    """Return PyODPS's entry to the project. Raises UserError for a missing variable or a missing package."""
    if absent := [name for name in VARIABLES if not os.environ.get(name)]:
        raise UserError(f"{reference.what} {reference.shown} needs {', '.join(absent)} in the environment; set them")
    try:
        from odps import ODPS
    except ImportError as error:
        raise UserError(
            f"{reference.what} {reference.shown} needs a package that is missing ({error}); pip install 'nlu[pai]'"
        ) from None
    key, secret, endpoint = (os.environ[name] for name in VARIABLES)
    tunnel = {"tunnel_endpoint": os.environ[TUNNEL]} if os.environ.get(TUNNEL) else {}
    return ODPS(key, secret, named.project, endpoint=endpoint, **tunnel)


def _download(odps: Any, named: Named, folder: Path) -> Path:
    """Write the rows batch by batch: memory does not grow with their number."""
    import pyarrow.parquet as parquet
    from odps.tunnel import TableTunnel
    from odps.tunnel.io.types import odps_schema_to_arrow_schema

    session = TableTunnel(odps).create_download_session(named.name, partition_spec=named.partition, async_mode=False)
    path = folder / f"{named.name}.parquet"
    with (
        parquet.ParquetWriter(path, odps_schema_to_arrow_schema(session.schema)) as writer,
        download_progress(f"{named.name}, rows", session.count) as advance,
    ):
        # Of no rows the service sends nothing, which the reader takes for a fault.
        with session.open_arrow_reader(0, session.count) if session.count else nullcontext([]) as reader:
            for batch in reader:
                writer.write_batch(batch)
                advance(batch.num_rows)
    if (rows := parquet.read_metadata(path).num_rows) != session.count:
        raise OSError(f"{rows} of {session.count} rows came")
    return path


def failure(reference: Reference, error: Exception, done: str = "read") -> DataError:
    """Return what to say of an error of PyODPS, without keys; `done` is what cannot be done."""
    key, secret, _ = (os.environ[name] for name in VARIABLES)
    said = " ".join(str(error).replace(secret, "***").replace(key, "***").split())[:500]
    named = f"{reference.what} {reference.shown}"
    status = getattr(error, "status_code", None)
    if status == 404 or type(error).__name__ == "NoSuchObject":
        return DataError(f"{named} does not exist ({said}); correct project, name and partition")
    if status in (401, 403):
        return DataError(
            f"{named} cannot be {done}: {said}; check {VARIABLES[0]}, {VARIABLES[1]} and the right to have it {done}"
        )
    return DataError(f"{named} cannot be {done}: {said}; check {VARIABLES[2]} and {TUNNEL}, or try again")


log = logging.getLogger(__name__)

T = TypeVar("T")
BATCH_ROWS = 4096
BLOCK_BYTES = 16 << 20
"""rows that go up in one request, and again where it breaks"""
LONGEST_NAME = 128
CLOSING_S = 120.0
HINTS = {"odps.sql.type.system.odps2": "true"}
"""without it a project of the first types knows neither int nor date"""


def is_table(text: str) -> bool:
    """Whether a text names a table of MaxCompute."""
    return text.lower().startswith("odps://")


class TableTarget:
    """A table, or one partition of it, that is to be filled."""

    def __init__(self, address: str, what: str):
        self._reference = parse_reference(address, what)
        self._named = table_of(self._reference)
        self.shown, self.name = self._reference.shown, self._named.name
        if wrong := re.search(r"[^\w.:+ -]", (self._named.partition or "").replace("=", "").replace(",", "")):
            raise UserError(f"{what} {self.shown} has {wrong[0]!r} in the name of a partition; write it without")

    def require_free(self) -> None:
        """Raise UserError where the table or partition holds rows, or the address does not fit the table."""
        self._asked(self._require_free)

    def storable(self, schema: Any) -> Any:
        """Return an Arrow schema whose types MaxCompute has, for rows of this schema.

        Raises UserError for a column of another type or with a name that no table can have, and where the table is
        there with other columns.
        """
        import pyarrow as pa

        stored = pa.schema([pa.field(field.name, _stored(field.type)) for field in schema])
        found = self._asked(lambda: self._columns_of(stored))
        self._asked(lambda: self._require_columns(found))
        return stored

    def send(self, path: Path, note: Path) -> None:
        """Have the rows of a parquet file in the table, which is made where there is none, and all of them at once.

        `note` is where it is written which upload is being committed; where it is there already, that upload is
        finished, if it can be. Raises UserError where rows of others are there by now, and where the service does not
        take these.
        """
        self._asked(lambda: self._send(path, note))

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except UserError:
            raise
        except Exception as error:  # PyODPS has its own, urllib3's and pyarrow's
            raise failure(self._reference, error, "written") from None

    @cached_property
    def _odps(self) -> Any:
        return connected(self._reference, self._named)

    def _table(self) -> Any:
        """Return the table, None where there is none. Raises UserError where it has other partitions."""
        from odps.errors import NoSuchObject

        table = self._odps.get_table(self._named.name)
        try:
            table.reload()
        except NoSuchObject:
            return None
        own = [column.name for column in table.table_schema.partitions]
        if own != self._keys:
            written = "".join(f"/{key}=VALUE" for key in own)
            has = f"the partitions {written}" if own else "no partition"
            raise UserError(
                f"{self._reference.what} is {self.shown}, but the table has {has}; write "
                f"odps://{self._named.project}/tables/{self.name}{written}"
            )
        return table

    @property
    def _keys(self) -> list[str]:
        """What the parts of a partition are called."""
        return [part.partition("=")[0] for part in (self._named.partition or "").split(",") if part]

    def _rows(self) -> int:
        """Return how many rows are there, by what the tunnel would give: what is told of a table may be late."""
        from odps.tunnel import TableTunnel

        table = self._table()
        if table is None or (self._named.partition and not table.exist_partition(self._named.partition)):
            return 0
        tunnel = TableTunnel(self._odps)
        found = tunnel.create_download_session(self.name, partition_spec=self._named.partition, async_mode=False)
        return int(found.count)

    def _require_free(self) -> None:
        if rows := self._rows():
            raise UserError(
                f"{self._reference.what} is {self.shown}, which holds {counted(rows, 'row')}; nothing was written; "
                "choose another table or partition, or remove these rows"
            )

    def _columns_of(self, schema: Any) -> Any:
        """Return the columns of a table for these rows."""
        from odps.models import TableSchema
        from odps.tunnel.io.types import arrow_type_to_odps_type
        from odps.types import Column, Partition

        columns = []
        for field in schema:
            _require_name(self._reference.what, field.name)
            try:
                columns.append(Column(field.name, arrow_type_to_odps_type(field.type)))
            except TypeError:
                raise UserError(
                    f"{self._reference.what} is {self.shown}, but column {field.name} holds {field.type}, for which "
                    "MaxCompute has no type; give output the suffix .parquet"
                ) from None
        names = [column.name.lower() for column in columns] + [key.lower() for key in self._keys]
        if doubled := [name for name in names if names.count(name) > 1]:
            raise UserError(
                f"{self._reference.what} is {self.shown}, but {doubled[0]} would be the name of two columns, since "
                "MaxCompute takes small and capital letters for the same; rename one, or set prefix"
            )
        return TableSchema(columns=columns, partitions=[Partition(key, "string") for key in self._keys])

    def _require_columns(self, wanted: Any) -> None:
        """Raise UserError where the table is there and does not have these columns, in whatever order."""
        table = self._table()
        if table is None:
            return
        there, ours = (_types_of(schema.simple_columns) for schema in (table.table_schema, wanted))
        for name in {**there, **ours}:
            if there.get(name) != ours.get(name):
                raise UserError(
                    f"{self._reference.what} is {self.shown}, where column {name} is {there.get(name, 'not there')}, "
                    f"but the rows have {ours.get(name, 'no such column')}; choose another table, which is made where "
                    "there is none"
                )

    def _send(self, path: Path, note: Path) -> None:
        import pyarrow.parquet as parquet

        file = parquet.ParquetFile(path)
        if note.is_file() and self._is_committed(json.loads(note.read_text()), file.metadata.num_rows):
            return
        schema = self._columns_of(file.schema_arrow)
        table = self._odps.create_table(self.name, schema, if_not_exists=True, hints=dict(HINTS))
        self._require_columns(schema)
        if self._named.partition:
            table.create_partition(self._named.partition, if_not_exists=True)
        session, blocks = self._sent(file)
        # Others may have written meanwhile.
        self._require_free()
        write_json(note, {"upload": session.id, "blocks": blocks})
        _commit(session, blocks)

    def _sent(self, file: Any) -> tuple[Any, list[int]]:
        """Send all rows in blocks; returns the upload, which waits for its commit, and the numbers of the blocks."""
        from odps.tunnel import TableTunnel

        session = TableTunnel(self._odps).create_upload_session(self.name, partition_spec=self._named.partition)
        log.info("sending %s, %s", self.shown, counted(file.metadata.num_rows, "row"))
        with download_progress(f"{self.name}, rows", file.metadata.num_rows) as advance:
            with session.open_arrow_writer(buffer_size=BLOCK_BYTES) as writer:
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    writer.write(batch)
                    advance(batch.num_rows)
        return session, list(writer.get_blocks_written())

    def _is_committed(self, noted: dict[str, Any], rows: int) -> bool:
        """Finish the upload whose commit an earlier command began; False where nothing of it is there."""
        from odps.errors import ODPSError
        from odps.tunnel import TableTunnel

        tunnel, partition = TableTunnel(self._odps), self._named.partition
        try:
            session = tunnel.create_upload_session(self.name, partition_spec=partition, upload_id=noted["upload"])
        except ODPSError as error:
            log.info("upload %s is not known any more (%s)", noted["upload"], type(error).__name__)
            session = None
        if session is not None and _state(session) in ("closed", "closing", "normal"):
            _commit(session, noted["blocks"])
            return True
        there = self._rows()
        if there not in (0, rows):
            self._require_free()
        return there == rows


def _commit(session: Any, blocks: list[int]) -> None:
    """Show what was sent. An answer that does not come is made good by asking what became of the upload."""
    if _state(session) == "normal":
        try:
            session.commit(blocks)
        except Exception:
            # PyODPS passes on whatever its transport raises. The service knows whether the commit arrived.
            session.reload()
            if _state(session) not in ("closing", "closed"):
                raise
    # The service is at work, and nothing failed: it is asked in even intervals.
    until_s = time.monotonic() + CLOSING_S
    while _state(session) == "closing" and time.monotonic() < until_s:
        time.sleep(1.0)
        session.reload()
    if _state(session) != "closed":
        raise OSError(f"upload {session.id} is {_state(session)} after its commit; give the same command again")


def _state(session: Any) -> str:
    return str(session.status.value).lower()


def _types_of(columns: Any) -> dict[str, str]:
    """Return the type of each column, written in one way."""
    return {column.name.lower(): str(column.type).lower().replace("`", "") for column in columns}


def _require_name(what: str, name: str) -> None:
    if not re.fullmatch(r"\w+", name) or len(name.encode()) > LONGEST_NAME:
        raise UserError(
            f"{what} is a table, but {name!r} is no name of a column there: it must hold letters, digits and _, "
            f"{LONGEST_NAME} bytes at most; rename the column, or give output the suffix .parquet"
        )


def _stored(kind: Any) -> Any:
    """Return an Arrow type that MaxCompute has and that holds all values of another, where there is one."""
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
