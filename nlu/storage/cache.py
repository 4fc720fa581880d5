"""The cache: a folder of fetched files, each complete or absent, and the digests of files that were read before.

Data sets and weights are large and named in every run, so they are fetched once and hashed once per machine. An entry
is filled in a staging folder and settled (`nlu.storage.settle`): if two processes fill the same entry, that of the
first one stays and the other process uses it.
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

from nlu.config.addresses import Reference
from nlu.config.errors import UserError
from nlu.storage.files import read_digest, read_json, write_json
from nlu.storage.locks import hold_lock
from nlu.storage.settle import MARKER, remove, settle

log = logging.getLogger(__name__)

ABANDONED_AFTER_S = 24 * 3600
"""the time without a change after which a staging folder is that of a killed process"""
YOUNG_NS = 2 * 10**9
"""the age up to which a file may change again without another time: clocks of file systems tick in up to 2 s"""
# The last three: a file, or a link to nothing, is where a folder of the cache should be.
UNWRITABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT,
}  # fmt: skip


def cache_dir() -> Path:
    """Return the cache folder, $NLU_CACHE or .cache/nlu in the home folder, as an absolute path; it need not exist.

    Raises UserError if the default is used and this user lacks a home folder.
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
    """Return a short, stable name for a list of texts, suitable as a file name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file in hex, remembered in the cache by absolute path, inode, size and times.

    An unchanged file is read once, or each time if it has changed just now or the cache cannot be written. Raises
    OSError as `open` does.
    """
    path = Path(path).absolute()
    before = _identity(path)
    is_old = time.time_ns() - path.stat().st_ctime_ns >= YOUNG_NS
    memo = cache_dir() / "digests" / f"{text_digest(str(path))}.json"
    known = read_json(memo)
    if known is not None and known.get("file") == before and isinstance(known.get("sha256"), str):
        return known["sha256"]
    digest = read_digest(path)
    # A file that changes while it is read has a digest that belongs to neither version.
    if is_old and _identity(path) == before:
        try:
            write_json(memo, {"file": before, "sha256": digest})
        except OSError as error:
            log.debug("digest of %s is not remembered: %s", path, error)
    return digest


def _identity(path: Path) -> dict[str, str | int]:
    status = path.stat()
    # A program can give a changed file any time of modification, but not the time of that change.
    times = {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
    return {"path": str(path), "inode": status.st_ino, "size": status.st_size, **times}


@contextmanager
def staging_folder() -> Iterator[Path]:
    """Give a new empty folder on the file system of the cache, which is removed at the end unless it was renamed.

    Raises UserError if the cache folder cannot be created.
    """
    parent = cache_dir() / "staging"
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable("a fetched file", error) or error from error
    oldest_s = time.time() - ABANDONED_AFTER_S
    for left in parent.iterdir():
        # Another process may remove it at the same time.
        with suppress(OSError):
            if max(path.stat().st_mtime for path in [left, *left.rglob("*")]) < oldest_s:
                remove(left)
    folder = parent / secrets.token_hex(8)
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unwritable(what: str, error: object) -> UserError | None:
    """Return the message for an error of writing `what` to the cache; None for an error of another kind."""
    if not isinstance(error, OSError) or error.errno not in UNWRITABLE:
        return None
    return UserError(
        f"{what} cannot be written to the cache {cache_dir()}: {error.strerror}; free some space or set the "
        "environment variable NLU_CACHE to another folder"
    )


@dataclass(frozen=True)
class Entry:
    """One file or folder in the cache, named by everything that determines its content."""

    folder: Path

    @classmethod
    def of(cls, kind: str, *identity: str) -> "Entry":
        """Return the entry for an identity; `kind` is the folder of the cache that it is in."""
        return cls(cache_dir() / kind / text_digest(*identity))

    def find(self) -> Path | None:
        """Return the file or folder of this entry, None if it is absent or incomplete."""
        marker = read_json(self.folder / MARKER)
        if marker is None or "path" not in marker:
            return None
        path = self.folder / marker["path"]
        return path if path.exists() else None

    def fill(self, reference: Reference, write: Callable[[Path], Path], *, action: str = "fetching") -> Path:
        """Fill the entry and return its file or folder, which `write(folder)` creates below `folder` and returns.

        `action` describes that work in the log. Raises UserError if the cache cannot be written. If `write` raises an
        error, nothing is left in the cache.
        """
        log.info("%s %s %s into %s", action, reference.what, reference.shown, self.folder)
        try:
            with staging_folder() as staging:
                whole = staging / "entry"
                (whole / "files").mkdir(parents=True)
                # Relative, because the folder is renamed and the whole cache may be moved.
                path = write(whole / "files").relative_to(whole)
                mark = json.dumps({"source": reference.shown, "path": path.as_posix()}, ensure_ascii=False)
                # An entry whose file was deleted, but not its mark, counts as damaged and is replaced.
                settle(whole, self.folder, note=mark, is_good=lambda folder: Entry(folder).find() is not None)
        except OSError as error:
            if refusal := unwritable(f"{reference.what} {reference.shown}", error):
                raise refusal from error
            raise
        found = self.find()
        assert found is not None, f"{self.folder} was filled but is not complete"
        return found

    def computed(self, reference: Reference, write: Callable[[Path], Path]) -> Path:
        """Return the file or folder of this entry, which the first process of this machine that needs it `fill`s.

        Others wait, because they would compute the same numbers at once. Raises UserError as `fill` does.
        """
        if (found := self.find()) is not None:
            return found
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(f"{reference.what} {reference.shown}", error) or error from error
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        with hold_lock(lock, wait_s=math.inf, optional=True, what=reference.what):
            found = self.find() or self.fill(reference, write, action="computing")
            lock.unlink(missing_ok=True)
        return found
