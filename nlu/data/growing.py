"""Training rows that are still being written: what `nlu.preprocess` leaves of each part.

    CACHE/growing/FINGERPRINT/parts.json      {"parts": 2}: how many jobs write the rows
    CACHE/growing/FINGERPRINT/head/           all of the store but the training rows: tokenizer, meta.json, other sets
    CACHE/growing/FINGERPRINT/00000.json      what the first part has written: rows and sha256 of each shard
    CACHE/growing/FINGERPRINT/00000/          its shards, 00000.arrow, 00001.arrow, ...
    CACHE/growing/FINGERPRINT/00000.lock      held by the process that writes the first part

A part is a run of neighboring files, so that the rows of all parts, one after another, are those of one job in its
order. Rows are only added at the end of a part, and those of a later part count once the earlier ones are complete.
So the number of a row never changes, whichever part is finished first.
"""

import logging
import math
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from nlu.config.errors import DataError, UserError
from nlu.data.growing_shared import SharedGrowth
from nlu.data.reusing import CUT
from nlu.data.sharing import SharedStores
from nlu.data.store import SetWriter
from nlu.storage.bucket import Unreachable
from nlu.storage.cache import cache_dir
from nlu.storage.files import read_digest, read_json, write_json
from nlu.storage.locks import hold_folder, hold_lock, is_locked
from nlu.storage.settle import is_whole

log = logging.getLogger(__name__)

BEAT_S = 20.0
"""how often a writer shows that it lives"""
FETCH_S = 5.0
"""between two looks into an object store"""


@dataclass
class Manifest:
    """What a part has written so far, as JSON."""

    rows: list[int] = field(default_factory=list)
    """of each shard"""
    sha256: list[str] = field(default_factory=list)
    is_complete: bool = False
    beat: int = 0
    """grows as long as the writer lives"""
    command: str = ""
    """the command that continues it"""
    problems: list[str] = field(default_factory=list)
    """why the writer has ended, if rows could not be used"""
    counts: dict[str, Any] = field(default_factory=dict)
    """of the whole part, as `Builder.counts`"""
    file_rows: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


class Growth:
    """The folder of a store whose training rows are being written."""

    def __init__(self, name: str, stores: SharedStores | None = None):
        """`name`: the fingerprint of the store. `stores`: where other machines write it or read it."""
        self.folder = cache_dir() / "growing" / name
        self.shared = None if stores is None else SharedGrowth(name, stores)
        self.beats: dict[int, int] = {}
        """of each part in the object store"""
        self._next_fetch_s = -math.inf

    @property
    def head(self) -> Path:
        return self.folder / "head"

    def shards_of(self, part: int) -> Path:
        return self.folder / f"{part:05d}"

    @property
    def parts(self) -> int | None:
        """The number of parts; None before the first writer has begun."""
        found = read_json(self.folder / "parts.json")
        return None if found is None else int(found["parts"])

    def begin(self, parts: int) -> None:
        """Set the number of parts. Raises UserError if others write another number of them."""
        with self._lock("parts", wait_s=60):
            known = self.parts if self.shared is None else self.shared.begin(parts)
            if known in (None, parts):
                write_json(self.folder / "parts.json", {"parts": parts})
            else:
                raise UserError(
                    f"data.parts is {parts}, but {self.folder} is being written in {known}; set data.parts={known}, or "
                    "remove this folder to begin again"
                )

    def hold(self, part: int) -> AbstractContextManager[None]:
        """Return a context that excludes other writers of a part. Entering it raises Locked if there is one."""
        # A process that fetches looks at this lock, and shares it for an instant.
        return self._lock(f"{part:05d}", wait_s=1)

    def hold_join(self) -> AbstractContextManager[bool]:
        """Return a context that only one process is in; the folder is created again if the one before removed it."""
        return hold_folder(self.folder, "join.lock", wait_s=math.inf, optional=True, what=f"the end of {self.folder}")

    def _lock(self, name: str, wait_s: float) -> AbstractContextManager[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return hold_lock(self.folder / f"{name}.lock", wait_s=wait_s, optional=True)

    def manifest(self, part: int) -> Manifest | None:
        """Return what a part has written; None if it has not begun."""
        found = read_json(self.folder / f"{part:05d}.json")
        return None if found is None else Manifest(**found)

    def keep(self, part: int, manifest: Manifest) -> None:
        write_json(self.folder / f"{part:05d}.json", asdict(manifest))

    def continued(self, part: int) -> Manifest:
        """Return what a part has written, on this machine or another one, for the process that continues it."""
        if self.shared is None:
            return self.manifest(part) or Manifest()
        # Shards that are only here, since they were written without `stores`, are still to be sent.
        found = self.shared.manifest(part)
        return Manifest() if found is None else Manifest(**found)

    def fetch(self, *, all_parts: bool = False) -> None:
        """Fetch what other machines have written; a service that does not respond is asked again later.

        `all_parts`: also those behind a part that is not complete. Raises DataError for damaged shards.
        """
        if self.shared is None or (not all_parts and time.monotonic() < self._next_fetch_s):
            return
        self._next_fetch_s = time.monotonic() + FETCH_S
        try:
            # One process of this machine fetches for the others.
            with self._lock("fetch", wait_s=math.inf):
                self._fetch(self.shared, all_parts)
        except (Unreachable, FileNotFoundError) as error:
            log.debug("%s", error)

    def _fetch(self, shared: SharedGrowth, all_parts: bool) -> None:
        if (parts := shared.parts) is None:
            shared.fetch_store(cache_dir() / "stores" / self.folder.name)
            return
        write_json(self.folder / "parts.json", {"parts": parts})
        if not is_whole(self.head):
            shared.fetch_head(self.head)
        counts = True
        for part in range(parts):
            there, here = shared.manifest(part), self.manifest(part)
            self.beats[part] = 0 if there is None else there["beat"]
            # What is written here is here already.
            if counts and there is not None and not is_locked(self.folder / f"{part:05d}.lock"):
                if here is None or there["beat"] > here.beat:
                    shared.fetch_part(part, there, self.shards_of(part))
                    self.keep(part, Manifest(**there))
            counts &= all_parts or (there is not None and there["is_complete"])

    def manifests(self) -> list[Manifest | None]:
        return [self.manifest(part) for part in range(self.parts or 0)]

    @property
    def is_complete(self) -> bool:
        """Whether all parts are."""
        found = self.manifests()
        return bool(found) and all(manifest is not None and manifest.is_complete for manifest in found)

    def remove(self) -> None:
        """Remove everything, once the store is complete."""
        if self.shared is not None:
            self.shared.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def clean(self) -> None:
        """Remove from this machine what is left once the store is complete, unless a process still writes it."""
        if not any(is_locked(path) for path in self.folder.glob("*.lock")):
            shutil.rmtree(self.folder, ignore_errors=True)


class PartWriter(SetWriter):
    """Writes the rows of one part, and adds each shard to the manifest as soon as it is complete.

    A writer that was killed begins again at the first row and writes the same shards; those that are there stay.
    """

    def __init__(self, growth: Growth, part: int, target: pa.DataType | None, command: str):
        self._growth, self._part = growth, part
        before = growth.continued(part)
        self.manifest = Manifest(before.rows, before.sha256, beat=before.beat + 1, command=command)
        self._next_beat_s = 0.0
        super().__init__(growth.shards_of(part), target)
        self.beat()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def beat(self) -> None:
        """Show now and then that this process lives."""
        if time.monotonic() >= self._next_beat_s:
            self._keep()

    def _keep(self) -> None:
        self.manifest.beat += 1
        if self._growth.shared is not None:
            self._growth.shared.send_manifest(self._part, asdict(self.manifest))
        self._growth.keep(self._part, self.manifest)
        self._next_beat_s = time.monotonic() + BEAT_S

    def _write(self, whole: pa.RecordBatch, path: Path) -> None:
        number, known = self._shards, self.manifest
        if number < len(known.rows) and path.is_file() and read_digest(path) == known.sha256[number]:
            return
        super()._write(whole, path)
        rows, digest = len(whole), read_digest(path)
        if number < len(known.rows) and (known.rows[number], known.sha256[number]) != (rows, digest):
            raise DataError(
                f"{path} is not what was written there before: the rows, or what shapes them, have changed; remove "
                f"{self._growth.folder} and start the runs that read it again"
            )
        if number == len(known.rows):
            if self._growth.shared is not None:
                self._growth.shared.send_file(self._part, path)
            known.rows.append(rows)
            known.sha256.append(digest)
            self._keep()

    def finish(self, counts: dict[str, Any], file_rows: list[int], groups: Sequence[str]) -> None:
        """Mark the part as complete."""
        if self._growth.shared is not None:
            self._growth.shared.send_file(self._part, self.folder / CUT)
        self.manifest.counts, self.manifest.file_rows, self.manifest.groups = counts, file_rows, list(groups)
        self.manifest.is_complete = True
        self._keep()

    def fail(self, error: DataError) -> None:
        """Let the runs that wait for rows know why there will be no more."""
        self.manifest.problems = list(error.problems)
        self._keep()
