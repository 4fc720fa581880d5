"""The cache: a folder of fetched files, each complete or absent, and the digests of files that were read before.

Datasets and weights are large and named in every run: they are fetched once and hashed once per machine. An entry is
filled in a staging folder and settled (`nlu.storage.settle`). If two processes fill the same entry at once, the entry
of the first one stays and the other process uses it.
"""

import errno
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.storage.files import read_digest, read_json, write_json
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.places import Reference
from nlu.storage.settle import MARKER, settle

logger = logging.getLogger(__name__)

ABANDONED_AFTER_S = 24 * 3600


def cache_dir() -> Path:
    """The cache folder: $NLU_CACHE, else .cache/nlu in the home folder. Absolute; it need not exist yet.

    Raises UserError where a home folder is wanted and this user has none.
    """
    written = os.environ.get("NLU_CACHE") or "~/.cache/nlu"
    try:
        return Path(written).expanduser().absolute()
    except RuntimeError as error:
        raise UserError(
            f"the cache would be {written}, but this user has no home folder (no HOME, no entry in passwd); set the "
            "environment variable NLU_CACHE to a folder"
        ) from error


def text_digest(*parts: str) -> str:
    """A short, stable name for a list of texts, fit for a file name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def file_digest(path: str | Path) -> str:
    """sha256 of the file in hex, remembered in the cache by absolute path, size and modification time.

    An unchanged file is read once; where the cache cannot be written, every time. Raises OSError as `open` does.
    """
    path = Path(path).absolute()
    before = _identity(path)
    memo = cache_dir() / "digests" / f"{text_digest(str(path))}.json"
    known = read_json(memo)
    if known is not None and known.get("file") == before and isinstance(known.get("sha256"), str):
        return known["sha256"]
    digest = read_digest(path)
    if _identity(path) == before:
        try:
            write_json(memo, {"file": before, "sha256": digest})
        except OSError as error:
            logger.debug("digest of %s is not remembered: %s", path, error)
    return digest


def _identity(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


@contextmanager
def staging_folder() -> Iterator[Path]:
    """A new empty folder on the file system of the cache, removed at the end with what was not renamed away."""
    parent = cache_dir() / "staging"
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        # Of a full disk, and of missing rights, the command has sentences of its own.
        raise UserError(
            f"the cache {cache_dir()} cannot be written: {error.strerror}; set NLU_CACHE to a folder that can"
        ) from error
    _remove_abandoned(parent)
    folder = parent / secrets.token_hex(8)
    # The lock comes first and goes last, so that nobody finds the folder of a living process without it.
    with hold_lock(_lock_of(folder), wait_s=math.inf, optional=True):
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left: what nobody holds. Of hosts whose locks are not seen here, age protects it."""
    oldest = time.time() - ABANDONED_AFTER_S
    for name in {path.name.removesuffix(".lock") for path in parent.iterdir()}:
        folder = parent / name
        if _newest(folder) >= oldest:
            continue
        with suppress(Locked, OSError), hold_lock(_lock_of(folder), wait_s=0, optional=True):
            shutil.rmtree(folder, ignore_errors=True)
            _lock_of(folder).unlink(missing_ok=True)


def _newest(folder: Path) -> float:
    """When anything in a folder was last changed: 0 where there is no folder, inf where something goes right now."""
    if not folder.exists():
        return 0.0
    try:
        return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
    except FileNotFoundError:
        return math.inf


UNWRITABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """The place in the cache of one thing, named by everything that determines its content."""

    folder: Path

    @classmethod
    def of(cls, kind: str, *identity: str) -> "Entry":
        """The entry of this kind (a folder of the cache) for this identity."""
        return cls(cache_dir() / kind / text_digest(*identity))

    def find(self) -> Path | None:
        """The file or folder that the entry holds, or None where it is absent or incomplete."""
        marker = read_json(self.folder / MARKER)
        if marker is None or "path" not in marker:
            return None
        path = self.folder / marker["path"]
        return path if path.exists() else None

    def fill(self, reference: Reference, write: Callable[[Path], Path], *, action: str = "fetching") -> Path:
        """Fills the entry and returns what it holds; `write(folder)` puts it below folder and returns its path;
        `action` names that work in the log.

        Raises UserError where the cache cannot be written; whatever `write` raises leaves nothing in the cache.
        """
        logger.info("%s %s %s into %s", action, reference.what, reference.shown, self.folder)
        try:
            with staging_folder() as staging:
                whole = staging / "entry"
                (whole / "files").mkdir(parents=True)
                path = write(whole / "files").relative_to(whole)
                mark = json.dumps({"source": reference.shown, "path": path.as_posix()}, ensure_ascii=False)
                settle(whole, self.folder, note=mark, is_good=lambda folder: Entry(folder).find() is not None)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise UserError(
                f"{reference.what} {reference.shown} cannot be written to the cache {cache_dir()}: {error.strerror}; "
                "free some space or set the environment variable NLU_CACHE to another folder"
            ) from error
        found = self.find()
        assert found is not None, f"{self.folder} was filled but is not complete"
        return found
