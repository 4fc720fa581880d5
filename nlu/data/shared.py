"""Data stores that machines share in an object store: built by one of them, found by its fingerprint by all others.

    STORES/FINGERPRINT/COMPLETE          {"folder": ..., "files": {name: {"size": ..., "sha256": ...}}}
    STORES/FINGERPRINT/FOLDER/NAME       a file of it

A builder writes all files to a folder of its own and then COMPLETE, on the condition that none stands: of several, one
counts, and the others take their folders away. What is shared saves time and decides nothing: where the store is away,
a machine builds for itself.
"""

import json
import logging
import uuid
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.storage.backend import download_progress
from nlu.storage.bucket import Unreachable
from nlu.storage.cache import staging_folder
from nlu.storage.files import inside, read_digest
from nlu.storage.objects import ObjectStore
from nlu.storage.settle import MARKER, settle

log = logging.getLogger(__name__)


class SharedStores:
    """The folder of a bucket that `stores` names. Raises UserError for what is none, and for credentials it refuses."""

    def __init__(self, url: str):
        self.store = ObjectStore(url, "stores")

    def fetch(self, name: str, folder: Path) -> bool:
        """Have the store of this fingerprint in a folder here; returns whether there was one."""
        try:
            said = self._complete(name)
            if said is None:
                return False
            with staging_folder() as staging:
                self._receive(name, said, staging / "store")
                settle(staging / "store", folder)
        except (Unreachable, FileNotFoundError, DataError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("the data store %s of %s cannot be had, and is built here: %s", name, self.store.shown, error)
            return False
        log.info("data store %s: fetched from %s", folder, self.store.shown)
        return True

    def push(self, name: str, folder: Path) -> None:
        """Have all others find the store of this folder, unless one is there."""
        try:
            if self._complete(name) is None:
                self._send(name, folder)
        except (Unreachable, ValueError) as error:
            log.warning("the data store %s is not shared: %s", folder, error)

    def _complete(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads(self.store.get(f"{name}/{MARKER}"))
        except FileNotFoundError:
            return None

    def _receive(self, name: str, said: dict[str, Any], new: Path) -> None:
        files = said["files"]
        with download_progress(name, sum(entry["size"] for entry in files.values())) as advance:
            for file, entry in files.items():
                path = inside(new, file, self.store.shown)
                path.parent.mkdir(parents=True, exist_ok=True)
                digest = self.store.get_file(f"{name}/{said['folder']}/{file}", path, advance, hashed=True)
                if digest != entry["sha256"]:
                    raise DataError(f"{file} is damaged: its sha256 is {digest}, not {entry['sha256']}")

    def _send(self, name: str, folder: Path) -> None:
        own = uuid.uuid4().hex
        paths = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != MARKER
        }
        for file, path in paths.items():
            self.store.put_file(f"{name}/{own}/{file}", path)
        files = {file: {"size": path.stat().st_size, "sha256": read_digest(path)} for file, path in paths.items()}
        said = json.dumps({"folder": own, "files": files}).encode()
        self.store.put_new(f"{name}/{MARKER}", said)
        # The answer may have been lost, so the store itself says whose counts.
        if (self._complete(name) or {}).get("folder") == own:
            log.info("data store %s: shared in %s", folder, self.store.shown)
            return
        for file in paths:
            self.store.delete(f"{name}/{own}/{file}")
