"""Objects of a bucket, addressed by a key below one folder.

Writing an object replaces it as a whole: a reader sees the previous one or the new one. Nothing is appended, and
listings are never cached.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from nlu.config.addresses import object_reference
from nlu.config.errors import UserError
from nlu.storage import access, transfer_in_parts
from nlu.storage.access import Asking, FileInfo
from nlu.storage.files import read_digest
from nlu.storage.locations import Place
from nlu.storage.transfer_in_parts import Advance, no_progress

AT_ONCE = 32


class ObjectStore:
    """The objects below a folder of a bucket, `s3://bucket/folder` or `oss://bucket/folder`.

    Keys are relative to the folder and never lead out of it. The endpoint and credentials come from the environment
    (AWS_*, OSS_*, FSSPEC_*). An instance can be pickled and inherited over fork, and threads may share it.

    Failed requests are tried again after `delays_s`, by default as for any place. Every method raises what
    `nlu.storage.refusals.asked` does. The constructor raises UserError if `url` is not such an address.
    """

    def __init__(self, url: str, what: str, delays_s: Iterable[float] | None = None):
        self.reference = object_reference(url, what)
        self.shown = self.reference.shown.rstrip("/")
        bucket, _, folder = self.reference.location.partition("://")[2].rstrip("/").partition("/")
        self._top = Place("oss" if self.reference.scheme == "oss" else "s3", bucket, folder)
        self._asking = Asking(called=f"{what} {self.shown}", delays_s=delays_s)

    def _place(self, key: str) -> Place:
        """Return the place of a key. Raises UserError for a key that leads out of the folder."""
        if not key or key.startswith("/") or ".." in key.split("/") or "\\" in key:
            raise UserError(f"{self.shown} holds no object called {key!r}: a key must not lead out of its folder")
        return replace(self._top, path=f"{self._top.path}/{key}")

    def put(self, key: str, content: bytes) -> None:
        """Write an object; an existing one is replaced."""
        access.write(self._place(key), content, **self._asking)

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object if none exists at this key; see `nlu.storage.access.write_new`."""
        return access.write_new(self._place(key), content, **self._asking)

    def put_file(self, key: str, path: Path, advance: Advance = no_progress) -> None:
        """Write an object from a file of any size; a large one goes in parts and appears when all have arrived."""
        transfer_in_parts.put(path, self._place(key), advance, **self._asking)

    def get(self, key: str) -> bytes:
        """Return an object. Raises FileNotFoundError if it does not exist."""
        return access.read_all(self._place(key), **self._asking)

    def get_file(self, key: str, path: Path, advance: Advance = no_progress) -> str:
        """Download an object to a file, atomically; returns its sha256.

        Raises FileNotFoundError if it does not exist, Changed if it is replaced meanwhile.
        """
        # The etag of this answer is required of every part, so all parts are of one version.
        info = self.stat(key)
        if info is None:
            raise FileNotFoundError(f"{self.shown}/{key}")
        # The file is new on this machine, so it does not get the object's time of modification.
        transfer_in_parts.fetch_into(self._place(key), replace(info, modified_s=None), path, advance)
        return read_digest(path)

    def get_several(self, keys: Sequence[str]) -> list[bytes | Exception]:
        """Return objects, requested concurrently; in the place of one that cannot be read, the error."""

        def get(place: Place) -> bytes | Exception:
            try:
                return access.read_all(place, **self._asking)
            except (FileNotFoundError, UserError) as error:
                return error

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(get, map(self._place, keys)))

    def list(self, prefix: str = "") -> dict[str, FileInfo]:
        """Return all objects below a folder by key, sorted."""
        folder = self._place(prefix.rstrip("/")) if prefix else self._top
        try:
            found = access.files(folder, **self._asking)
        except FileNotFoundError:
            return {}
        start = f"{folder.path}/".removeprefix(f"{self._top.path}/")
        return {f"{start}{key}": info for key, info in found.items()}

    def stat(self, key: str) -> FileInfo | None:
        """Return what is known of an object, None if it does not exist."""
        info = access.stat(self._place(key), **self._asking)
        return None if info is None or info.is_folder else info

    def copy(self, source: str, target: str) -> None:
        """Copy an object; an existing one is replaced. Raises FileNotFoundError if the source does not exist."""
        access.copy(self._place(source), self._place(target), **self._asking)

    def delete(self, key: str) -> None:
        """Delete an object if it exists."""
        access.delete(self._place(key), **self._asking)

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
