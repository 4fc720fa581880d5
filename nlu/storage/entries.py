"""Entries of the cache: each is there as a whole or not at all, whatever kills the process that fills it.

An entry is filled in a staging folder, marked COMPLETE and renamed into place; of two processes that fill the
same entry at once, the first one's stands and the other uses it.
"""

import errno
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.cache import cache_dir, read_json, staging_folder, text_digest
from nlu.storage.reference import Reference

logger = logging.getLogger(__name__)

MARKER = "COMPLETE"
UNWRITABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST,
}  # fmt: skip
OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST}


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
                marker = {"source": reference.shown, "path": path.as_posix()}
                (whole / MARKER).write_text(json.dumps(marker, ensure_ascii=False), encoding="utf-8")
                self._settle(whole)
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

    def _settle(self, whole: Path) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        while self.find() is None:
            try:
                os.rename(whole, self.folder)
            except OSError as error:
                if error.errno not in OCCUPIED:
                    raise
                self._move_broken_aside()

    def _move_broken_aside(self) -> None:
        if self.find() is not None:
            return
        with staging_folder() as broken:
            try:
                os.rename(self.folder, broken / "broken")
            except FileNotFoundError:
                logger.debug("%s was moved aside by another process", self.folder)
