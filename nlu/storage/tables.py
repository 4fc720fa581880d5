"""Tables of MaxCompute as files: odps://PROJECT/tables/NAME[/KEY=VALUE...], fetched by Arrow into the cache as parquet.

By PyODPS (read in 0.13.2). The keys of the account come from ALIBABA_CLOUD_ACCESS_KEY_ID and _SECRET, the address of
the service from ODPS_ENDPOINT, that of the tunnel, where it cannot be found through it, from ODPS_TUNNEL_ENDPOINT. A
table is fetched anew when the service says that its data changed. Tried against a double alone.
"""

import os
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import download_progress
from nlu.storage.cache import Entry
from nlu.storage.environment import ENDPOINT, KEY, PLACE, SECRET, name_of
from nlu.storage.places import Reference

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
