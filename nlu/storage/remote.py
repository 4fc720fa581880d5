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
from nlu.storage.archives import inside
from nlu.storage.cache import cache_dir, read_json, text_digest
from nlu.storage.download import file_entry
from nlu.storage.entries import Entry
from nlu.storage.files import write_json
from nlu.storage.progress import download_progress
from nlu.storage.reference import Reference

logger = logging.getLogger(__name__)

VERSION_FIELDS = ("etag", "size", "mtime", "lastmodified", "created", "md5", "generation", "crc32c")
ADVICE = "check endpoint and credentials (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, FSSPEC_...), or give a local path"


@dataclass(frozen=True)
class Listing:
    """What the store holds under a location: for a file, itself under its own name."""

    is_folder: bool
    sizes: dict[str, int | None]
    """Remote path of each file -> size in bytes, None where the store does not say."""
    root: str
    version: str
    """Differs whenever the store says that any of the files differs."""


def fetch_remote(reference: Reference) -> Path:
    """The file or folder (a prefix) at the location, fetched anew when the store says that it changed.

    Where the store cannot be reached, the version fetched last, with a warning. Raises DataError where there is
    none, UserError for a scheme that fsspec does not know or whose package is missing.
    """
    if reference.sha256 is not None and (pinned := file_entry(reference).find()) is not None:
        return pinned
    filesystem, root = connect(reference)
    latest = cache_dir() / "latest" / f"{text_digest(reference.location)}.json"
    try:
        listing = _list(filesystem, root)
    except FileNotFoundError as error:
        raise _missing(reference) from error
    except PermissionError as error:
        raise _failure(reference, error) from error
    except Exception as error:  # each driver has exceptions of its own for a server that does not answer
        return _last_fetched(reference, latest, error)
    entry = _entry(reference, listing)
    path = entry.find() or entry.fill(reference, lambda folder: _download(reference, filesystem, listing, folder))
    _note(latest, {"source": reference.shown, "entry": entry.folder.relative_to(cache_dir()).as_posix()})
    return path


def _note(latest: Path, note: dict[str, Any]) -> None:
    """Note the version fetched last; a cache that cannot be written goes without."""
    if read_json(latest) != note:
        try:
            write_json(latest, note)
        except OSError as error:
            logger.debug("%s is not noted: %s", latest, error)


def connect(reference: Reference, **options: Any) -> tuple[Any, str]:
    """A filesystem of fsspec that no other caller shares, and the location's path in it.

    `options` go to the driver. Raises UserError for a scheme that is not known or whose package is missing.
    """
    import fsspec

    if reference.scheme in {"s3", "s3a", "oss"}:
        options = {"use_listings_cache": False, **options}
    try:
        return fsspec.url_to_fs(reference.location, skip_instance_cache=True, **options)
    except ImportError as error:
        hint = "pip install ossfs, or use s3:// with AWS_ENDPOINT_URL" if reference.scheme == "oss" else "install it"
        raise UserError(
            f"{reference.what} {reference.shown} needs a package that is missing ({error}); {hint}"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{reference.what} {reference.shown}: {error}; use a path, http(s)://, s3://, pypi://, hf:// "
            "or another scheme of fsspec"
        ) from error


def _list(filesystem: Any, root: str) -> Listing:
    info = filesystem.info(root)
    is_folder = info["type"] == "directory"
    found = filesystem.find(root, detail=True) if is_folder else {root: info}
    files = {path: entry for path, entry in sorted(found.items()) if entry["type"] == "file" and path[-1] != "/"}
    if not files:
        raise FileNotFoundError(root)
    version = json.dumps([[path, _version(entry)] for path, entry in files.items()])
    return Listing(is_folder, {path: entry.get("size") for path, entry in files.items()}, root, version)


def _version(info: dict[str, Any]) -> list[str]:
    normal = {key.lower().replace("_", ""): value for key, value in info.items()}
    return [f"{field}={normal[field]}" for field in VERSION_FIELDS if normal.get(field) is not None]


def _entry(reference: Reference, listing: Listing) -> Entry:
    if reference.sha256 is None:
        return Entry.of("remote", reference.location, listing.version)
    if listing.is_folder:
        raise DataError(f"{reference.what} {reference.shown} is a folder and has no sha256; drop #sha256=...")
    return file_entry(reference)


def _download(reference: Reference, filesystem: Any, listing: Listing, folder: Path) -> Path:
    top = folder / reference.name
    known = [size for size in listing.sizes.values() if size is not None]
    with download_progress(reference.name, sum(known) if len(known) == len(listing.sizes) else None) as advance:
        for remote, size in listing.sizes.items():
            relative = remote.removeprefix(listing.root).strip("/")
            path = inside(top, relative, reference.shown) if listing.is_folder else top
            path.parent.mkdir(parents=True, exist_ok=True)
            _receive(reference, filesystem, remote, path, advance)
            if size is not None and path.stat().st_size != size:
                raise _failure(reference, f"{remote} came with {path.stat().st_size} of {size} bytes")
    reference.check_digest(top)
    return top


def _receive(reference: Reference, filesystem: Any, remote: str, path: Path, advance: Callable[[int], None]) -> None:
    from fsspec.callbacks import Callback

    class Advance(Callback):
        def relative_update(self, inc: int = 1) -> None:
            advance(inc)

    try:
        filesystem.get_file(remote, str(path), callback=Advance())
    except FileNotFoundError as error:
        raise _missing(reference) from error
    except Exception as error:  # each driver has exceptions of its own for a transfer that breaks
        raise _failure(reference, error) from error


def _last_fetched(reference: Reference, latest: Path, error: Exception) -> Path:
    known = read_json(latest)
    path = Entry(cache_dir() / known["entry"]).find() if known else None
    if path is None:
        raise _failure(reference, error) from error
    logger.warning("%s cannot be asked (%s); using the version fetched last, %s", reference.shown, error, path)
    return path


def _missing(reference: Reference) -> DataError:
    return DataError(f"{reference.what} {reference.shown} does not exist in the store; correct the reference")


def _failure(reference: Reference, reason: object) -> DataError:
    return DataError(f"{reference.what} {reference.shown} cannot be fetched: {reason}; {ADVICE}")
