"""Disks and buckets as stores: what lies at a place, and how it is written whole or not at all."""

import secrets
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.bucket import Bucket
from nlu.storage.buckets import open_bucket
from nlu.storage.parts import WHOLE_BYTES, put_in_parts
from nlu.storage.places import OBJECTS, Place
from nlu.storage.store import Advance, Disk, Found, Store, WritableStore
from nlu.storage.web import Web


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
