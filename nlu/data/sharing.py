"""Stores that several machines use, shared in an object store.

    STORES/FINGERPRINT/COMPLETE             {"folder": ..., "files": {name: {"size": bytes, "sha256": ...}}}
    STORES/FINGERPRINT/FOLDER/NAME          a file of the store

A builder uploads all files to a new folder and then writes COMPLETE on the condition that it does not exist yet. If
several machines build the same store, the first COMPLETE counts and the others delete their folders. Sharing only saves
time: a machine that cannot reach the object store builds for itself.
"""

import json
import logging
import uuid
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.storage.cache import staging_folder
from nlu.storage.files import inside, read_digest
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Unreachable
from nlu.storage.settle import MARKER, settle
from nlu.storage.transfer_in_parts import download_progress

log = logging.getLogger(__name__)


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

    def _complete(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads(self.store.get(f"{name}/{MARKER}"))
        except FileNotFoundError:
            return None

    def _receive(self, name: str, manifest: dict[str, Any], new: Path) -> None:
        files = manifest["files"]
        with download_progress(name, sum(entry["size"] for entry in files.values())) as advance:
            for file, entry in files.items():
                path = inside(new, file, self.store.shown)
                path.parent.mkdir(parents=True, exist_ok=True)
                digest = self.store.get_file(f"{name}/{manifest['folder']}/{file}", path, advance)
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
