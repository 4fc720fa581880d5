"""Files and folders in object stores and on other servers that fsspec knows: s3, oss, gs, sftp, memory, ...

Endpoints and credentials come from the environment (AWS_*, FSSPEC_*), never from a configuration file of a run.
An object may change under its name, so the store is asked each time and the cache goes by what it answers.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Advance, download_progress
from nlu.storage.bucket import Unreachable
from nlu.storage.buckets import connect, open_bucket
from nlu.storage.cache import Entry, cache_dir, text_digest
from nlu.storage.environment import name_of
from nlu.storage.files import inside, read_json, write_json
from nlu.storage.objects import Objects
from nlu.storage.parts import fetch_into
from nlu.storage.places import Reference, is_object, parse_place
from nlu.storage.web import file_entry

logger = logging.getLogger(__name__)

VERSION_FIELDS = ("etag", "size", "mtime", "lastmodified", "created", "md5", "generation", "crc32c")
ADVICE = (
    f"check endpoint and credentials ({name_of('s3', 'endpoint')}, {name_of('s3', 'key')}, FSSPEC_...), "
    "or give a local path"
)


@dataclass(frozen=True)
class Listing:
    """What the store holds under a location: for a file, itself under the name ''."""

    sizes: dict[str, int | None]
    """Path of each file below the location -> size in bytes, None where the store does not say."""
    version: str
    """Differs whenever the store says that any of the files differs."""
    receive: Callable[[str, Path, Advance], None]
    """Writes one of them to a path here."""

    @property
    def is_folder(self) -> bool:
        return "" not in self.sizes


def fetch_remote(reference: Reference) -> Path:
    """The file or folder (a prefix) at the location, fetched anew when the store says that it changed.

    Where the store cannot be reached, the version fetched last, with a warning. Raises DataError where there is
    none, UserError for a scheme that fsspec does not know or whose package is missing.
    """
    if reference.sha256 is not None and (pinned := file_entry(reference).find()) is not None:
        return pinned
    latest = cache_dir() / "latest" / f"{text_digest(reference.location)}.json"
    try:
        listing = _list_objects(reference) if is_object(reference.location) else _list(reference)
    except FileNotFoundError as error:
        raise _missing(reference) from error
    except Unreachable as error:
        return _last_fetched(reference, latest, error)
    entry = _entry(reference, listing)
    path = entry.find() or entry.fill(reference, lambda folder: _download(reference, listing, folder))
    _note(latest, {"source": reference.shown, "entry": entry.folder.relative_to(cache_dir()).as_posix()})
    return path


def _note(latest: Path, note: dict[str, Any]) -> None:
    """Note the version fetched last; a cache that cannot be written goes without."""
    if read_json(latest) != note:
        try:
            write_json(latest, note)
        except OSError as error:
            logger.debug("%s is not noted: %s", latest, error)


def _list_objects(reference: Reference) -> Listing:
    place = parse_place(reference.location, reference.what)
    store = Objects(open_bucket(place.scheme, place.bucket, f"{reference.what} {reference.shown}"))
    found = store.look(place)
    files = {} if found is None else store.files(place) if found.is_folder else {"": found}
    if not files:
        raise FileNotFoundError(reference.location)

    def receive(name: str, path: Path, advance: Advance) -> None:
        fetch_into(store, place.within(name) if name else place, files[name], path, advance)

    version = repr([[name, file.size, file.etag, file.modified_s] for name, file in files.items()])
    return Listing({name: file.size for name, file in files.items()}, version, receive)


def _list(reference: Reference) -> Listing:
    """What lies in any other store that fsspec knows."""
    filesystem, root = connect(reference)
    try:
        info = filesystem.info(root)
        found = filesystem.find(root, detail=True) if info["type"] == "directory" else {root: info}
    except (FileNotFoundError, PermissionError) as error:
        raise error if isinstance(error, FileNotFoundError) else _failure(reference, error) from error
    except Exception as error:  # each driver has exceptions of its own for a server that does not answer
        raise Unreachable(*_failure(reference, error).problems) from error
    files = {path: entry for path, entry in sorted(found.items()) if entry["type"] == "file" and path[-1] != "/"}
    if not files:
        raise FileNotFoundError(root)
    names = {path.removeprefix(root).strip("/"): path for path in files}

    def receive(name: str, path: Path, advance: Advance) -> None:
        from fsspec.callbacks import Callback

        class Advancing(Callback):
            def relative_update(self, inc: int = 1) -> None:
                advance(inc)

        filesystem.get_file(names[name], str(path), callback=Advancing())

    version = json.dumps([[path, _version(entry)] for path, entry in files.items()])
    return Listing({name: files[path].get("size") for name, path in names.items()}, version, receive)


def _version(info: dict[str, Any]) -> list[str]:
    normal = {key.lower().replace("_", ""): value for key, value in info.items()}
    return [f"{field}={normal[field]}" for field in VERSION_FIELDS if normal.get(field) is not None]


def _entry(reference: Reference, listing: Listing) -> Entry:
    if reference.sha256 is None:
        return Entry.of("remote", reference.location, listing.version)
    if listing.is_folder:
        raise DataError(f"{reference.what} {reference.shown} is a folder and has no sha256; drop #sha256=...")
    return file_entry(reference)


def _download(reference: Reference, listing: Listing, folder: Path) -> Path:
    top = folder / reference.name
    known = [size for size in listing.sizes.values() if size is not None]
    with download_progress(reference.name, sum(known) if len(known) == len(listing.sizes) else None) as advance:
        for name, size in listing.sizes.items():
            path = inside(top, name, reference.shown) if listing.is_folder else top
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                listing.receive(name, path, advance)
            except FileNotFoundError as error:
                raise _missing(reference) from error
            except UserError:
                raise
            except Exception as error:  # each driver has exceptions of its own for a transfer that breaks
                raise _failure(reference, error) from error
            if size is not None and path.stat().st_size != size:
                raise _failure(reference, f"{name or reference.name} came with {path.stat().st_size} of {size} bytes")
    reference.check_digest(top)
    return top


def _last_fetched(reference: Reference, latest: Path, error: Unreachable) -> Path:
    known = read_json(latest)
    path = Entry(cache_dir() / known["entry"]).find() if known else None
    if path is None:
        raise error
    logger.warning("%s cannot be asked (%s); using the version fetched last, %s", reference.shown, error, path)
    return path


def _missing(reference: Reference) -> DataError:
    return DataError(f"{reference.what} {reference.shown} does not exist in the store; correct the reference")


def _failure(reference: Reference, reason: object) -> DataError:
    return DataError(f"{reference.what} {reference.shown} cannot be fetched: {reason}; {ADVICE}")
