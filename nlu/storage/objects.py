"""Objects of a bucket, addressed by a place or by a key below one folder; and the backend of any place.

`Objects` is the backend of places in a bucket. `ObjectStore` is a folder of a bucket that runs write to. Writing an
object replaces it as a whole: a reader sees the old one or the new one. Nothing is appended, and listings are never
cached. Keys of an `ObjectStore` are relative to its folder and never lead out of it.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Advance, Disk, FileStore, Found, WritableStore
from nlu.storage.bucket import Bucket, Changed, Upload
from nlu.storage.buckets import open_bucket
from nlu.storage.parts import WHOLE_BYTES, fetch_into, put_in_parts
from nlu.storage.places import OBJECTS, Place, object_reference
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


def store_of(place: Place) -> FileStore:
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


AT_ONCE = 32
READ_TRIES = 5
"""of a file that changes while it is read"""


def _unseen(size: int) -> None:
    """Show no progress."""


class ObjectStore:
    """The objects below a folder of a bucket, `s3://bucket/folder` or `oss://bucket/folder`.

    Endpoint and credentials come from the environment (AWS_*, OSS_*, FSSPEC_*). It can be pickled and inherited over
    fork, and threads may share it. Every method raises Denied for credentials that are refused, Unreachable where the
    store does not answer, asked again after `delays_s` or, if that is not given, as often as any store is. Opening
    raises UserError for what is no such address.
    """

    def __init__(self, url: str, what: str, delays_s: Iterable[float] | None = None):
        self.reference = object_reference(url, what)
        self.shown = self.reference.shown.rstrip("/")
        bucket, _, folder = self.reference.location.partition("://")[2].rstrip("/").partition("/")
        self._delays_s = delays_s
        self._uploads: set[str] = set()
        """begun by this process: runs that write to one folder do not continue each other's"""
        self._top = Place("oss" if self.is_oss else "s3", bucket, folder)

    @property
    def is_oss(self) -> bool:
        return self.reference.scheme == "oss"

    @property
    def _bucket(self) -> Bucket:
        called = f"{self.reference.what} {self.shown}"
        return open_bucket(self._top.scheme, self._top.bucket, called, self._delays_s)

    def _key(self, key: str) -> str:
        """Return the key in the bucket. Raises UserError for one that leads out of the folder."""
        if not key or key.startswith("/") or ".." in key.split("/") or "\\" in key:
            raise UserError(f"{self.shown} holds no object called {key!r}: a key must not lead out of its folder")
        return f"{self._top.path}/{key}"

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise UserError(
                f"{self.reference.what} {self.shown} cannot be written: its bucket does not exist; create it first"
            ) from error

    def put(self, key: str, content: bytes) -> None:
        """Write an object, in the place of what stands there."""
        with self._written():
            self._bucket.put(self._key(key), content)

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object where none stands; returns whether it was written, as `Bucket.put_new` does."""
        with self._written():
            return self._bucket.put_new(self._key(key), content)

    def put_file(self, key: str, path: Path, advance: Advance = _unseen) -> None:
        """Write an object from a file of any size, in parts where it is large; it appears when all parts are there."""
        with self._written():
            Objects(self._bucket, self._uploads).put(path, replace(self._top, path=self._key(key)), advance)

    def get(self, key: str) -> bytes:
        """Return an object. Raises FileNotFoundError where none stands."""
        return self._bucket.get(self._key(key))

    def get_file(self, key: str, path: Path, advance: Advance = _unseen, *, hashed: bool = False) -> str | None:
        """Write an object into a file, whole or not at all; with `hashed` returns its sha256.

        Raises FileNotFoundError where none stands.
        """
        place = replace(self._top, path=self._key(key))
        for tries_left in reversed(range(READ_TRIES)):
            found = self._bucket.head(place.path)
            if found is None:
                raise FileNotFoundError(f"{self.shown}/{key}")
            try:
                # The file is new on this machine, whatever the store says of its age.
                new = replace(found, modified_s=None)
                return fetch_into(Objects(self._bucket), place, new, path, advance, hashed=hashed)
            except Changed:
                if not tries_left:
                    raise
        raise AssertionError

    def get_several(self, keys: Sequence[str]) -> list[bytes | Exception]:
        """Return objects, asked for at once, or for each the error with which it did not come."""
        bucket = self._bucket

        def get(key: str) -> bytes | Exception:
            try:
                return bucket.get(key)
            except (FileNotFoundError, UserError) as error:
                return error

        inner = list(map(self._key, keys))
        if len(inner) == 1:
            return [get(inner[0])]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(get, inner))

    def list(self, prefix: str = "") -> dict[str, Found]:
        """Return all objects below a folder of the store, by key; nothing where there are none."""
        folder = self._key(prefix.rstrip("/")) if prefix else self._top.path
        try:
            found = dict(self._bucket.entries(f"{folder}/"))
        except FileNotFoundError:
            return {}
        start = f"{self._top.path}/"
        return {key.removeprefix(start): entry for key, entry in sorted(found.items()) if not key.endswith("/")}

    def look(self, key: str) -> Found | None:
        """Return what the store says of an object; None where none stands."""
        return self._bucket.head(self._key(key))

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, in the place of what stands there. Raises FileNotFoundError without one."""
        self._bucket.copy(self._top.bucket, self._key(source), self._key(target))

    def delete(self, key: str) -> None:
        """Delete an object; it may be gone already."""
        self._bucket.delete(self._key(key))

    def others_uploads(self) -> Iterator[tuple[str, Upload]]:
        """Yield the uploads in parts below this folder that this process did not begin, each with its key."""
        top = f"{self._top.path}/"
        for upload in self._bucket.uploads_below(top):
            if upload.name not in self._uploads:
                yield upload.key.removeprefix(top), upload

    def abort(self, upload: Upload) -> None:
        """Give up an upload in parts; it may be gone already."""
        self._bucket.abort(upload)

    def prove_conditional_put(self, key: str) -> None:
        """Raise UserError unless the store refuses to put an object where one stands: it is tried at this key."""
        refused = not self.put_new(key, b"first\n") or not self.put_new(key, b"second\n")
        if refused and self.get(key) == b"first\n":
            return
        condition = "x-oss-forbid-overwrite" if self.is_oss else "If-None-Match: *"
        bucket = " (on OSS that is so where the bucket is versioned)" if self.is_oss else ""
        raise UserError(
            f"{self.reference.what} {self.shown} cannot be shared: the store overwrites an object in spite of "
            f"{condition}{bucket}, so that of two writers one would be lost; use another bucket or store"
        )
