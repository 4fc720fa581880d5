"""Stores that several machines use or build: shared in an object store, or encoded in parts by several jobs.

    STORES/FINGERPRINT/COMPLETE             {"folder": ..., "files": {name: {"size": ..., "sha256": ...}}}
    STORES/FINGERPRINT/FOLDER/NAME          a file of the store
    STORES/FINGERPRINT/parts/SET-NUMBER.npz an encoded chunk of a store that is not built yet

A builder uploads all files to a new folder and then writes COMPLETE on the condition that it does not exist yet. If
several machines build the same store, the first COMPLETE counts and the others delete their folders. Sharing only saves
time: a machine that cannot reach the object store builds for itself.

A store can be built in parts: each job encodes some of the chunks of rows, and the last one joins them. The result has
the same bytes as a store that one job has built, because the rows are read again in their order and only the encoding
is taken from the parts. A chunk that is missing is encoded then, so a part that failed costs only time.
"""

import io
import json
import logging
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict
from zipfile import BadZipFile

import numpy as np

from nlu.config.errors import DataError
from nlu.data.store import EncodedRows
from nlu.storage.backend import download_progress
from nlu.storage.bucket import Unreachable
from nlu.storage.cache import cache_dir, staging_folder
from nlu.storage.files import inside, read_digest, write_bytes
from nlu.storage.objects import ObjectStore
from nlu.storage.settle import MARKER, settle

log = logging.getLogger(__name__)


class _SharedFile(TypedDict):
    """A file of a shared store; `size` is in bytes."""

    size: int
    sha256: str


class _Manifest(TypedDict):
    """The content of COMPLETE."""

    folder: str
    files: dict[str, _SharedFile]


class SharedStores:
    """Stores in a folder of a bucket. Raises UserError for an invalid address, and for credentials that are refused."""

    def __init__(self, url: str):
        self.store = ObjectStore(url, "stores")

    def fetch(self, name: str, folder: Path) -> bool:
        """Download the store with this fingerprint into a folder; returns whether it was found."""
        try:
            manifest = self._complete(name)
            if manifest is None:
                return False
            with staging_folder() as staging:
                self._receive(name, manifest, staging / "store")
                settle(staging / "store", folder)
        # A damaged manifest raises one of these too. After any of them the store can still be built.
        except (Unreachable, FileNotFoundError, DataError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the data store %s of %s cannot be fetched and is built: %s", name, self.store.shown, error)
            return False
        log.info("data store %s: fetched from %s", folder, self.store.shown)
        return True

    def push(self, name: str, folder: Path) -> None:
        """Upload the store in this folder unless the bucket has it."""
        try:
            if self._complete(name) is None:
                self._send(name, folder)
        except (Unreachable, ValueError) as error:
            log.warning("the data store %s is not shared: %s", folder, error)

    def has(self, name: str) -> bool:
        """Return whether the store with this fingerprint is there. Raises Unreachable."""
        return self._complete(name) is not None

    def _complete(self, name: str) -> _Manifest | None:
        try:
            return json.loads(self.store.get(f"{name}/{MARKER}"))
        except FileNotFoundError:
            return None

    def _receive(self, name: str, manifest: _Manifest, new: Path) -> None:
        files = manifest["files"]
        with download_progress(name, sum(entry["size"] for entry in files.values())) as advance:
            for file, entry in files.items():
                path = inside(new, file, self.store.shown)
                path.parent.mkdir(parents=True, exist_ok=True)
                digest = self.store.get_file(f"{name}/{manifest['folder']}/{file}", path, advance, hashed=True)
                if digest != entry["sha256"]:
                    raise DataError(f"{file} is damaged: its sha256 is {digest}, not {entry['sha256']}")

    def _send(self, name: str, folder: Path) -> None:
        # A new folder for each machine, since several may build at the same time and must not overwrite each other's
        # files.
        own = uuid.uuid4().hex
        paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != MARKER
        }
        # COMPLETE is written after all files, so readers never meet a part of a store.
        for file, path in paths.items():
            self.store.put_file(f"{name}/{own}/{file}", path)
        files = {file: {"size": path.stat().st_size, "sha256": read_digest(path)} for file, path in paths.items()}
        self.store.put_new(f"{name}/{MARKER}", json.dumps({"folder": own, "files": files}).encode())
        # Read back, because the answer to put_new may have been lost.
        complete = self._complete(name)
        if complete is not None and complete.get("folder") == own:
            log.info("data store %s: shared in %s", folder, self.store.shown)
            return
        for file in paths:
            self.store.delete(f"{name}/{own}/{file}")


class Chunks:
    """The encoded chunks of a store that is not built yet, by set and number.

    The chunks that exist are listed once, at the start.
    """

    def __init__(self, name: str, shared: ObjectStore | None):
        self._name, self._shared = name, shared
        self._folder = cache_dir() / "parts" / name
        self._names = self._listed()

    def __bool__(self) -> bool:
        return bool(self._names)

    def has(self, set_name: str, number: int) -> bool:
        """Return whether a chunk was encoded when this object was created."""
        return _file(set_name, number) in self._names

    def encoded(self, set_name: str, number: int, rows: int, encode: Callable[[], EncodedRows]) -> EncodedRows:
        """Return a chunk of `rows` rows as some job has encoded it, or the result of `encode`."""
        if self.has(set_name, number):
            try:
                with np.load(io.BytesIO(self._read(_file(set_name, number))), allow_pickle=False) as arrays:
                    found = EncodedRows(**dict(arrays))
                # A last check that the part was made of these rows.
                if len(found.lengths_N) == rows:
                    return found
            except (OSError, ValueError, EOFError, TypeError, KeyError, BadZipFile) as error:
                log.debug("chunk %d of %s is encoded again: %s", number, set_name, error)
        return encode()

    def keep(self, set_name: str, number: int, encoded: EncodedRows) -> None:
        """Save a chunk for the job that joins the parts. Raises Unreachable if an object store does not accept it."""
        content = io.BytesIO()
        np.savez(content, **{name: array for name, array in asdict(encoded).items() if array is not None})
        if self._shared is None:
            write_bytes(self._folder / _file(set_name, number), content.getvalue())
        else:
            self._shared.put(f"{self._name}/parts/{_file(set_name, number)}", content.getvalue())

    def clear(self) -> None:
        """Delete all chunks, once the store is built."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._shared is not None and self._names:
            try:
                for name in self._names:
                    self._shared.delete(f"{self._name}/parts/{name}")
            except Unreachable as error:
                log.debug("%s", error)

    def _read(self, name: str) -> bytes:
        if self._shared is None:
            return (self._folder / name).read_bytes()
        return self._shared.get(f"{self._name}/parts/{name}")

    def _listed(self) -> frozenset[str]:
        if self._shared is None:
            found = self._folder.glob("*.npz") if self._folder.is_dir() else ()
            return frozenset(path.name for path in found)
        try:
            return frozenset(Path(key).name for key in self._shared.list(f"{self._name}/parts"))
        except Unreachable as error:
            log.warning("no parts of the data store are found: %s", error)
            return frozenset()


def _file(set_name: str, number: int) -> str:
    return f"{set_name}-{number:08d}.npz"
