"""Tables of MaxCompute, by PyODPS: odps://PROJECT/tables/NAME[/KEY=VALUE...].

A table is read by Arrow into the cache as parquet, and fetched again when the service says that its data changed.
`nlu.storage.table_writing` writes tables.

The keys of the account come from ALIBABA_CLOUD_ACCESS_KEY_ID and _SECRET, the address of the service from
ODPS_ENDPOINT, and the address of the tunnel, if the service does not give it, from ODPS_TUNNEL_ENDPOINT. Read in PyODPS
0.13.2; tested only against a fake service.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.config.redaction import ENDPOINT, KEY, PLACE, SECRET, TOKEN, name_of
from nlu.storage.cache import Entry
from nlu.storage.progress import download_progress
from nlu.storage.role_keys import has_role, role_keys

VARIABLES = (name_of("alibaba cloud", KEY), name_of("alibaba cloud", SECRET), name_of("maxcompute", ENDPOINT))
TUNNEL = name_of("maxcompute", PLACE)
ADDRESS = re.compile(r"odps://(?P<project>[^/]+)/tables/(?P<name>[^/=]+)(?P<parts>(/[^/=]+=[^/]+)*)/?")


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
            said = said.replace(value, "***")
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
