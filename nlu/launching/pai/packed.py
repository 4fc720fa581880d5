"""The code of the jobs of this process: packed once, and put where the jobs look for it, once for each content."""

import functools
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from nlu.launching.history import project_folder
from nlu.launching.pai.archive import Archive, code_files, left_out, pack
from nlu.storage.objects import ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Packed:
    """The code of this process's jobs, as it was when the first of them was submitted."""

    archive: Archive
    names: frozenset[str]
    """what the jobs find, by path within the project"""
    within: str
    """the folder in which the command was started, by path within the project"""

    @property
    def key(self) -> str:
        """Where it lies on the store."""
        return f"code/{self.archive.digest}{self.archive.suffix}"

    @property
    def resource(self) -> str:
        """How a resource of a project that holds it is called."""
        return f"nlu-code-{self.archive.digest[:32]}.tar.gz"

    def put(self, store: ObjectStore) -> None:
        """Have it on the store."""
        if store.look(self.key) is None:
            log.info("uploading the code, %.1f MB", len(self.archive.content) / 1e6)
            store.put(self.key, self.archive.content)


NOTHING = Packed(Archive(b"", ""), frozenset(), ".")
"""no code: of a queue that only looks after jobs"""


@functools.lru_cache(maxsize=4)
def packed(include: tuple[str, ...], limit_mb: float, as_tar: bool) -> Packed:
    """Return the code; once a process, so that all trials of a search run the same."""
    top = project_folder()
    names = frozenset(code_files(top, include))
    archive = pack(top, include, limit_mb=limit_mb, as_tar=as_tar)
    for sentence in left_out(top, include):
        print(f"nlu: warning: {sentence}", file=sys.stderr)
    return Packed(archive, names, Path(os.path.relpath(Path.cwd(), top)).as_posix())
