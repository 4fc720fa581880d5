"""Entries of the cache: each is there as a whole or not at all, whatever kills the process that fills it.

An entry is filled in a staging folder and settled (`nlu.storage.settle`): of two processes that fill the same entry at
once, the first one's stands and the other uses it.
"""

import errno
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.cache import cache_dir, staging_folder, text_digest
from nlu.storage.files import read_json
from nlu.storage.places import Reference
from nlu.storage.settle import MARKER, settle

logger = logging.getLogger(__name__)

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
