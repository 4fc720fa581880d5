"""Files wherever they are: on this machine, in a bucket of S3 or OSS, and, to be read, on the web.

A folder of a bucket exists while there is an object below it. Writing an object replaces it as a whole: a reader sees
the previous one or the new one. For remote places, errors are those of `nlu.storage.refusals.asked`, and the keywords
`called` and `delays_s` are its.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack

from nlu.config.errors import DataError, UserError
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import READ_ONLY, Place
from nlu.storage.refusals import EXISTS, Changed, Refused, answer_of, asked


class Asking(TypedDict, total=False):
    """How remote places are asked; see `nlu.storage.refusals.asked`."""

    called: str
    delays_s: Iterable[float] | None


@dataclass(frozen=True)
class FileInfo:
    """What is known of a file or folder without reading it.

    `size` is in bytes, None if ranges of the file cannot be read. `etag` is the service's mark of the content, in its
    original case. `modified_s` is in seconds since 1970, UTC.
    """

    is_folder: bool
    size: int | None = None
    etag: str | None = None
    modified_s: float | None = None


def stat(place: Place, **asking: Unpack[Asking]) -> FileInfo | None:
    """Return what is known of a place, None if nothing exists there."""
    # The second error says that a part of the path is a file.
    with suppress(FileNotFoundError, NotADirectoryError):
        if place.is_local:
            return _local_info(Path(place.path))
        filesystem, path = filesystem_of(place)
        found = _info(asked(place, "read", lambda: filesystem.info(path), **asking))
        # A name with a slash at its end is that of a folder.
        return None if place.bucket and place.names_folder and not found.is_folder else found
    return None


def files(place: Place, **asking: Unpack[Asking]) -> dict[str, FileInfo]:
    """Return all files below a folder by their path relative to it, sorted.

    Raises UserError for a folder on the web, and DataError for a key that would lead out of the folder.
    """
    if place.is_local:
        # Broken links, sockets and pipes are left out: they lack content, and opening a pipe would wait forever.
        paths = sorted(Path(top, name) for top, _, names in os.walk(place.path) for name in names)
        return {path.relative_to(place.path).as_posix(): _local_info(path) for path in paths if path.is_file()}
    # A key with a slash at its end is the mark of a folder, which other programs make.
    found = {name: info for name, info in _listed(place, True, asking).items() if name and name[-1] != "/"}
    # A key may hold any character. As a path it must not lead out of the folder that it is copied to.
    for name in found:
        if name.startswith("/") or {"..", "."} & set(name.split("/")):
            raise DataError(f"{place.shown} holds {name!r}, a key outside its folder; it is not safe, remove it")
    return found


def children(place: Place, **asking: Unpack[Asking]) -> dict[str, FileInfo]:
    """Return the files and folders directly in a folder, by name."""
    if place.is_local:
        return {name: info for name in sorted(os.listdir(place.path)) if (info := stat(place.within(name)))}
    return {name: info for name, info in _listed(place, False, asking).items() if name}


def _listed(place: Place, is_deep: bool, asking: Asking) -> dict[str, FileInfo]:
    if place.scheme in READ_ONLY:
        raise UserError(f"{place.shown}: web servers do not list folders; name each file")
    filesystem, path = filesystem_of(place)
    start = f"{place.path}/" if place.path else ""

    def verb() -> Iterable[Mapping[str, Any]]:
        # A prefix makes it one listing, without a question whether the folder is a file.
        return (
            filesystem.find(place.bucket, prefix=start, detail=True).values() if is_deep else filesystem.ls(path, True)
        )

    found = asked(place, "listed", verb, **asking)
    return dict(sorted((one["name"].removeprefix(f"{place.bucket}/{start}"), _info(one)) for one in found))


def read(place: Place, start: int, stop: int, info: FileInfo, **asking: Unpack[Asking]) -> bytes:
    """Return the bytes `start:stop` of a file. Raises Changed if a bucket has another version than `info`."""
    if place.is_local:
        with open(place.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)
    filesystem, path = filesystem_of(place)

    def verb() -> bytes:
        content = filesystem.read_range(path, start, stop, info.etag)
        if len(content) > stop - start:
            raise Changed(f"{place.shown} changed while it was read; try again")
        if len(content) < stop - start:
            raise ConnectionError(f"{len(content)} of {stop - start} bytes came")
        return content

    return asked(place, "read", verb, **asking)


def read_all(place: Place, **asking: Unpack[Asking]) -> bytes:
    """Return the content of a remote file in one request. Raises FileNotFoundError if it does not exist."""
    filesystem, path = filesystem_of(place)
    return asked(place, "read", lambda: filesystem.cat_file(path), **asking)


def write(place: Place, content: bytes, *, is_new: bool = False, **asking: Unpack[Asking]) -> None:
    """Write an object. With `is_new` the service refuses to overwrite one, if it knows this condition."""
    filesystem, path = filesystem_of(place)
    mode = {"mode": "create"} if is_new else {}
    asked(place, "written", lambda: filesystem.pipe_file(path, content, **mode), **asking)


def write_new(place: Place, content: bytes, **asking: Unpack[Asking]) -> bool:
    """Write an object if none exists at this place; returns whether it was written.

    This is the one condition for two writers. If an answer is lost, the object may exist although this returns False or
    raises Unreachable: a caller that must know reads the object and recognizes it by an id in its content.
    """
    try:
        write(place, content, is_new=True, **asking)
    except (Changed, Refused) as error:
        if answer_of(error)[0] in EXISTS:
            return False
        raise
    return True


def copy(source: Place, target: Place, **asking: Unpack[Asking]) -> None:
    """Copy an object within a service; an existing one is replaced."""
    filesystem, path = filesystem_of(source)
    asked(target, "copied", lambda: filesystem.cp_file(path, filesystem_of(target)[1]), **asking)


def delete(place: Place, **asking: Unpack[Asking]) -> None:
    """Remove a file if it exists."""
    with suppress(FileNotFoundError):
        if place.is_local:
            Path(place.path).unlink()
        else:
            filesystem, path = filesystem_of(place)
            asked(place, "removed", lambda: filesystem.rm_file(path), **asking)


def try_writing(place: Place) -> None:
    """Write an object in a folder and remove it again. Raises what that raises."""
    probe = place.within(f".{secrets.token_hex(8)}.probe")
    write(probe, b"", called=place.shown)
    delete(probe, called=place.shown)


def _local_info(path: Path) -> FileInfo:
    status, is_folder = path.stat(), path.is_dir()
    return FileInfo(is_folder, None if is_folder else status.st_size, None, status.st_mtime)


def _info(entry: Mapping[str, Any]) -> FileInfo:
    if entry["type"] == "directory":
        return FileInfo(is_folder=True)
    modified, etag = entry.get("LastModified"), (entry.get("ETag") or "").strip('"')
    if isinstance(modified, str):
        modified = parsedate_to_datetime(modified)
    modified_s = modified.timestamp() if isinstance(modified, datetime) else modified
    return FileInfo(False, entry["size"], etag or None, None if modified_s is None else float(modified_s))
