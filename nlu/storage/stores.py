"""Disks and buckets as stores: what lies at a place, and how it is written whole or not at all."""

import os
import secrets
import shutil
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.bucket import Bucket
from nlu.storage.buckets import open_bucket
from nlu.storage.files import replacing
from nlu.storage.parts import WHOLE_BYTES, put_in_parts
from nlu.storage.places import OBJECTS, Place
from nlu.storage.store import Advance, Found, Store, WritableStore
from nlu.storage.web import Web

COPY_BYTES = 1 << 20


class Disk(WritableStore):
    """The file systems of this machine."""

    def look(self, place: Place) -> Found | None:
        try:
            status = os.stat(place.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_folder = os.path.isdir(place.path)
        return Found(is_folder, None if is_folder else status.st_size, None, status.st_mtime)

    def files(self, place: Place) -> dict[str, Found]:
        root = Path(place.path)
        found = {}
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in names:
                path = Path(folder, name)
                if path.is_file():
                    status = path.stat()
                    found[path.relative_to(root).as_posix()] = Found(False, status.st_size, None, status.st_mtime)
        return dict(sorted(found.items()))

    def children(self, place: Place) -> dict[str, Found]:
        return {name: found for name in sorted(os.listdir(place.path)) if (found := self.look(place.within(name)))}

    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        with open(place.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def read_whole(self, place: Place, path: Path) -> None:
        shutil.copyfile(place.path, path)

    def put(self, path: Path, place: Place, advance: Advance) -> None:
        with open(path, "rb") as source, replacing(place.path) as target:
            while chunk := source.read(COPY_BYTES):
                target.write(chunk)
                advance(len(chunk))
        shutil.copystat(path, place.path)

    def remove(self, place: Place) -> None:
        Path(place.path).unlink(missing_ok=True)

    def make_folder(self, place: Place) -> bool:
        Path(place.path).mkdir(parents=True, exist_ok=True)
        return True

    def try_writing(self, place: Place) -> None:
        folder = Path(place.path)
        if folder.is_file():
            folder = folder.parent
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not there.is_dir():
            raise UserError(f"{place.shown} cannot be written: {there} is a file; name another place")
        probe = there / f".{secrets.token_hex(8)}.probe"
        try:
            probe.touch()
        except OSError as error:
            raise UserError(f"{place.shown} cannot be written: {error.strerror}; name another place") from error
        probe.unlink()


class Objects(WritableStore):
    """One bucket. A folder is there while an object lies below it.

    An upload in parts that was cut off continues, whoever began it; with `own_uploads` only if it is one of these.
    """

    def __init__(self, bucket: Bucket, own_uploads: set[str] | None = None):
        self.bucket, self._own_uploads = bucket, own_uploads

    def look(self, place: Place) -> Found | None:
        if place.path and not place.names_folder and (found := self.bucket.head(place.path)):
            return found
        try:
            below = self.bucket.entries(f"{place.path}/" if place.path else "")
            is_folder = not place.path or any(not key.endswith("/") for key, _ in below)
            if not place.path:
                next(below, None)
        except FileNotFoundError:
            return None
        return Found(is_folder=True) if is_folder else None

    def files(self, place: Place) -> dict[str, Found]:
        prefix = f"{place.path}/" if place.path else ""
        found = {key.removeprefix(prefix): entry for key, entry in self.bucket.entries(prefix) if not key.endswith("/")}
        for name in found:
            if name.startswith("/") or {"..", "."} & set(name.split("/")):
                raise DataError(f"{place.shown} holds {name!r}, a key outside its folder; it is not safe, remove it")
        return found

    def children(self, place: Place) -> dict[str, Found]:
        prefix = f"{place.path}/" if place.path else ""
        entries = self.bucket.entries(prefix, nested=False)
        return {name: found for key, found in entries if (name := key.removeprefix(prefix).rstrip("/"))}

    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        return self.bucket.get(place.path, (start, stop), found.etag)

    def read_whole(self, place: Place, path: Path) -> None:
        path.write_bytes(self.bucket.get(place.path))

    def put(self, path: Path, place: Place, advance: Advance) -> None:
        if path.stat().st_size < WHOLE_BYTES:
            content = path.read_bytes()
            self.bucket.put(place.path, content)
            advance(len(content))
        else:
            put_in_parts(self.bucket, path, place.path, advance, self._own_uploads)

    def remove(self, place: Place) -> None:
        self.bucket.delete(place.path)

    def remove_marks(self, place: Place) -> None:
        """Remove what stands for folders: empty objects whose key ends with a slash."""
        for key, _ in list(self.bucket.entries(f"{place.path}/")):
            if key.endswith("/"):
                self.bucket.delete(key)

    def make_folder(self, place: Place) -> bool:
        if place.path:
            return False
        if self.look(place) is None:
            self.bucket.create()
        return True

    def try_writing(self, place: Place) -> None:
        probe = "/".join(filter(None, [place.path, f".{secrets.token_hex(8)}.probe"]))
        self.bucket.put(probe, b"")
        self.bucket.delete(probe)


def store_of(place: Place) -> Store:
    """The store of a place that is local, an object or on the web. Asks nothing yet."""
    if place.is_local:
        return Disk()
    if place.scheme in OBJECTS:
        return Objects(open_bucket(place.scheme, place.bucket))
    return Web()


def writable_store_of(place: Place) -> WritableStore:
    """The store of a place that is to be written. Raises UserError for one that can be read alone."""
    store = store_of(place)
    if not isinstance(store, WritableStore):
        raise UserError(f"{place.shown} can be read alone; write to a local path, s3:// or oss://")
    return store
