"""Rows that are still being written, in an object store: writers send what they finish, and readers fetch it.

    STORES/FINGERPRINT/growing/parts.json     as in the folder of a machine (`nlu.data.growing`), and so are the others
    STORES/FINGERPRINT/growing/00000.json     written after the shards that it names
    STORES/FINGERPRINT/growing/00000/         shards of the first part, and at its end cut.npy
    STORES/FINGERPRINT/head/                  the head, in the form of a shared store

When the store is complete it is shared as any other, and only then this is removed.
"""

import json
import logging
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.data.reusing import CUT
from nlu.data.sharing import SharedStores
from nlu.storage.bucket import Unreachable

log = logging.getLogger(__name__)


class SharedGrowth:
    """The folder of one growing store in an object store. Methods raise Unreachable if it does not respond."""

    def __init__(self, name: str, stores: SharedStores):
        self._name, self._stores = name, stores

    def _key(self, name: str) -> str:
        return f"{self._name}/growing/{name}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._stores.store.get(self._key(name)))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def parts(self) -> int | None:
        """The number of parts; None if no writer has begun, or the store is complete."""
        found = self._read("parts.json")
        return None if found is None else int(found["parts"])

    def begin(self, parts: int) -> int:
        """Set the number of parts unless another writer has; returns it."""
        self._stores.store.put_new(self._key("parts.json"), json.dumps({"parts": parts}).encode())
        return self.parts or parts

    def manifest(self, part: int) -> dict[str, Any] | None:
        return self._read(f"{part:05d}.json")

    def send_manifest(self, part: int, manifest: dict[str, Any]) -> None:
        self._stores.store.put(self._key(f"{part:05d}.json"), json.dumps(manifest).encode())

    def send_file(self, part: int, path: Path) -> None:
        """Send a shard of a part, or its cut.npy."""
        self._stores.store.put_file(self._key(f"{part:05d}/{path.name}"), path)

    def send_head(self, head: Path) -> None:
        self._stores.push(f"{self._name}/head", head)

    def fetch_head(self, head: Path) -> bool:
        """Fetch the head if it is there; returns whether it is."""
        return self._stores.fetch(f"{self._name}/head", head)

    def fetch_store(self, folder: Path) -> bool:
        """Fetch the complete store if it is there; returns whether it is."""
        return self._stores.fetch(self._name, folder)

    def fetch_part(self, part: int, manifest: dict[str, Any], folder: Path) -> None:
        """Fetch the shards of a part that are not in its folder on this machine."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, wanted in enumerate(manifest["sha256"]):
            path = folder / f"{number:05d}.arrow"
            if path.is_file():
                continue
            digest = self._stores.store.get_file(self._key(f"{part:05d}/{path.name}"), path, hashed=True)
            if digest != wanted:
                path.unlink(missing_ok=True)
                raise DataError(f"{path.name} of part {part} is damaged: its sha256 is {digest}, not {wanted}")
        if manifest["is_complete"] and not (folder / CUT).is_file():
            self._stores.store.get_file(self._key(f"{part:05d}/{CUT}"), folder / CUT)

    def are_complete(self, parts: int) -> bool:
        """Whether all parts are."""
        found = [self.manifest(part) for part in range(parts)]
        return all(manifest is not None and manifest["is_complete"] for manifest in found)

    def remove(self) -> None:
        """Remove everything, once the complete store is shared; without it, everything stays."""
        try:
            if self._stores.has(self._name):
                # The number of parts first: without it, what is left is nothing.
                self._stores.store.delete(self._key("parts.json"))
                for folder in ("growing", "head"):
                    for key in self._stores.store.list(f"{self._name}/{folder}"):
                        self._stores.store.delete(key)
        except Unreachable as error:
            log.debug("%s", error)
