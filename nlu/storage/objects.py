"""Objects of a bucket, addressed by a place or by a key below one folder; and the backend of any place.

Writing an object replaces it as a whole: a reader sees the previous one or the new one. Nothing is appended, and
listings are never cached.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nlu.config.addresses import OBJECTS, object_reference
from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Advance, Backend, Disk, FileInfo, WritableBackend, no_progress
from nlu.storage.bucket import Bucket, Changed, Upload
from nlu.storage.buckets import open_bucket
from nlu.storage.parts import WHOLE_BYTES, fetch_into, put_in_parts
from nlu.storage.places import Place
from nlu.storage.temporary import retried
from nlu.storage.web import Web

AT_ONCE = 32
READ_TRIES = 5
"""of an object that changes while it is read"""


class BucketBackend(WritableBackend):
    """The backend of one bucket. A folder exists while there is an object below it.

    Interrupted multipart uploads are continued, also those of other processes; with `own_uploads` only the uploads
    named in it.
    """

    def __init__(self, bucket: Bucket, own_uploads: set[str] | None = None):
        self.bucket, self._own_uploads = bucket, own_uploads

    def stat(self, place: Place) -> FileInfo | None:
        if place.path and not place.names_folder and (info := self.bucket.head(place.path)):
            return info
        try:
            if not place.path:
                next(self.bucket.entries(""), None)
                return FileInfo(is_folder=True)
            # A key with a slash at its end is the mark of an empty folder, which other programs create.
            is_folder = any(not key.endswith("/") for key, _ in self.bucket.entries(_prefix(place)))
        except FileNotFoundError:
            return None
        return FileInfo(is_folder=True) if is_folder else None

    def files(self, place: Place) -> dict[str, FileInfo]:
        prefix = _prefix(place)
        found = {key.removeprefix(prefix): info for key, info in self.bucket.entries(prefix) if not key.endswith("/")}
        # A key may hold any character. As a path it must not lead out of the folder that it is copied to.
        for name in found:
            if name.startswith("/") or {"..", "."} & set(name.split("/")):
                raise DataError(f"{place.shown} holds {name!r}, a key outside its folder; it is not safe, remove it")
        return found

    def children(self, place: Place) -> dict[str, FileInfo]:
        prefix = _prefix(place)
        entries = self.bucket.entries(prefix, nested=False)
        return {name: info for key, info in entries if (name := key.removeprefix(prefix).rstrip("/"))}

    def read(self, place: Place, start: int, stop: int, info: FileInfo) -> bytes:
        return self.bucket.get(place.path, (start, stop), info.etag)

    def put(self, path: Path, place: Place, advance: Advance) -> None:
        if path.stat().st_size < WHOLE_BYTES:
            content = path.read_bytes()
            self.bucket.put(place.path, content)
            advance(len(content))
        else:
            put_in_parts(self.bucket, path, place.path, advance, self._own_uploads)

    def remove(self, place: Place) -> None:
        self.bucket.delete(place.path)

    def remove_folder_marks(self, place: Place) -> None:
        """Remove the empty objects that other programs create for folders; their keys end with a slash."""
        for key, _ in list(self.bucket.entries(f"{place.path}/")):
            if key.endswith("/"):
                self.bucket.delete(key)

    def make_folder(self, place: Place) -> bool:
        # A bucket has no folders. Only the bucket itself can be created.
        if place.path:
            return False
        if self.stat(place) is None:
            self.bucket.create()
        return True

    def try_writing(self, place: Place) -> None:
        probe = f"{_prefix(place)}.{secrets.token_hex(8)}.probe"
        self.bucket.put(probe, b"")
        self.bucket.delete(probe)


def _prefix(place: Place) -> str:
    return f"{place.path}/" if place.path else ""


def backend_of(place: Place) -> Backend:
    """Return the backend of a local place, of one in a bucket, or of one on the web; sends no request."""
    if place.is_local:
        return Disk()
    if place.scheme in OBJECTS:
        return BucketBackend(open_bucket(place.scheme, place.bucket))
    return Web()


def writable_backend_of(place: Place) -> WritableBackend:
    """Return the backend of a place that is to be written. Raises UserError for a read-only place."""
    backend = backend_of(place)
    if not isinstance(backend, WritableBackend):
        raise UserError(f"{place.shown} is read-only; write to a local path, s3:// or oss://")
    return backend


class ObjectStore:
    """The objects below a folder of a bucket, `s3://bucket/folder` or `oss://bucket/folder`.

    Keys are relative to the folder and never lead out of it. The endpoint and credentials come from the environment
    (AWS_*, OSS_*, FSSPEC_*). An instance can be pickled and inherited over fork, and threads may share it.

    Failed requests are tried again after `delays_s`, by default as for any bucket. Every method raises Denied for
    rejected credentials and Unreachable if the service does not respond. The constructor raises UserError if `url` is
    not such an address.
    """

    def __init__(self, url: str, what: str, delays_s: Iterable[float] | None = None):
        self.reference = object_reference(url, what)
        self.shown = self.reference.shown.rstrip("/")
        bucket, _, folder = self.reference.location.partition("://")[2].rstrip("/").partition("/")
        self._delays_s = delays_s
        self._uploads: set[str] = set()
        """begun by this process: runs that write to the same folder do not continue each other's uploads"""
        self._top = Place("oss" if self.reference.scheme == "oss" else "s3", bucket, folder)

    @property
    def _bucket(self) -> Bucket:
        called = f"{self.reference.what} {self.shown}"
        return open_bucket(self._top.scheme, self._top.bucket, called, self._delays_s)

    def _place(self, key: str) -> Place:
        return replace(self._top, path=self._key(key))

    def _key(self, key: str) -> str:
        """Return the key in the bucket. Raises UserError for a key that leads out of the folder."""
        if not key or key.startswith("/") or ".." in key.split("/") or "\\" in key:
            raise UserError(f"{self.shown} holds no object called {key!r}: a key must not lead out of its folder")
        return f"{self._top.path}/{key}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise UserError(
                f"{self.reference.what} {self.shown} cannot be written: its bucket does not exist; create it first"
            ) from error

    def put(self, key: str, content: bytes) -> None:
        """Write an object; an existing one is replaced."""
        with self._writing():
            self._bucket.put(self._key(key), content)

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object if none exists at this key; returns whether it was written, as `Bucket.put_new` does."""
        with self._writing():
            return self._bucket.put_new(self._key(key), content)

    def put_file(self, key: str, path: Path, advance: Advance = no_progress) -> None:
        """Write an object from a file of any size; a large one goes in parts and appears when all have arrived."""
        with self._writing():
            BucketBackend(self._bucket, self._uploads).put(path, self._place(key), advance)

    def get(self, key: str) -> bytes:
        """Return an object. Raises FileNotFoundError if it does not exist."""
        return self._bucket.get(self._key(key))

    def get_file(self, key: str, path: Path, advance: Advance = no_progress, *, hashed: bool = False) -> str | None:
        """Download an object to a file, atomically; with `hashed` returns its sha256.

        Raises FileNotFoundError if it does not exist, Changed if it is replaced during each of READ_TRIES downloads.
        """
        place = self._place(key)

        def fetch() -> str | None:
            # The etag of this answer is required of every part, so all parts are of one version.
            info = self._bucket.head(place.path)
            if info is None:
                raise FileNotFoundError(f"{self.shown}/{key}")
            # The file is new on this machine, so it does not get the object's time of modification.
            new = replace(info, modified_s=None)
            return fetch_into(BucketBackend(self._bucket), place, new, path, advance, hashed=hashed)

        return retried(fetch, [0.0] * (READ_TRIES - 1), lambda error: isinstance(error, Changed))

    def get_several(self, keys: Sequence[str]) -> list[bytes | Exception]:
        """Return objects, requested concurrently; in the place of one that cannot be read, the error."""
        bucket = self._bucket

        def get(key: str) -> bytes | Exception:
            try:
                return bucket.get(key)
            except (FileNotFoundError, UserError) as error:
                return error

        inner = list(map(self._key, keys))
        # Most callers ask for one object, which needs no threads.
        if len(inner) == 1:
            return [get(inner[0])]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(get, inner))

    def list(self, prefix: str = "") -> dict[str, FileInfo]:
        """Return all objects below a folder by key, sorted."""
        folder = self._key(prefix.rstrip("/")) if prefix else self._top.path
        try:
            found = dict(self._bucket.entries(f"{folder}/"))
        except FileNotFoundError:
            return {}
        start = f"{self._top.path}/"
        return {key.removeprefix(start): info for key, info in sorted(found.items()) if not key.endswith("/")}

    def stat(self, key: str) -> FileInfo | None:
        """Return what is known of an object, None if it does not exist."""
        return self._bucket.head(self._key(key))

    def copy(self, source: str, target: str) -> None:
        """Copy an object; an existing one is replaced. Raises FileNotFoundError if the source does not exist."""
        self._bucket.copy(self._top.bucket, self._key(source), self._key(target))

    def delete(self, key: str) -> None:
        """Delete an object if it exists."""
        self._bucket.delete(self._key(key))

    def others_uploads(self) -> Iterator[tuple[str, Upload]]:
        """Yield each unfinished upload below this folder that this process did not begin, with its key."""
        top = f"{self._top.path}/"
        for upload in self._bucket.uploads_below(top):
            if upload.name not in self._uploads:
                yield upload.key.removeprefix(top), upload

    def abort(self, upload: Upload) -> None:
        """Abort an upload if it exists."""
        self._bucket.abort(upload)

    def prove_conditional_put(self, key: str) -> None:
        """Raise UserError unless the service refuses to overwrite an object on condition; it is tried at this key."""
        # An earlier process may have written the object already: then the first put is refused, else the second one
        # must be.
        refused = not self.put_new(key, b"first\n") or not self.put_new(key, b"second\n")
        if refused and self.get(key) == b"first\n":
            return
        is_oss = self._top.scheme == "oss"
        condition = "x-oss-forbid-overwrite" if is_oss else "If-None-Match: *"
        versioned = " (OSS does so in a versioned bucket)" if is_oss else ""
        raise UserError(
            f"{self.reference.what} {self.shown} cannot be shared: the service overwrites an object in spite of "
            f"{condition}{versioned}, so one of two concurrent writes would be lost; use another bucket or service"
        )
