"""The folder where fetched files are kept, and the digests of files that were read before.

Datasets and weights are large and named in every run: they are fetched once and hashed once per machine.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nlu.storage.files import write_json

logger = logging.getLogger(__name__)

ABANDONED_AFTER_S = 24 * 3600


def cache_dir() -> Path:
    """The cache folder: $NLU_CACHE, else .cache/nlu in the home folder. Absolute; it need not exist yet."""
    return Path(os.environ.get("NLU_CACHE") or "~/.cache/nlu").expanduser().absolute()


def text_digest(*parts: str) -> str:
    """A short, stable name for a list of texts, fit for a file name."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def read_digest(path: Path) -> str:
    """sha256 of the file in hex, read from disk now."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file, or None where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def staging_folder() -> Iterator[Path]:
    """A new empty folder on the file system of the cache, removed at the end with what was not renamed away."""
    parent = cache_dir() / "staging"
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Removes what killed processes left. Age decides: a process id says nothing about another machine's process."""
    oldest = time.time() - ABANDONED_AFTER_S
    for folder in parent.iterdir():
        try:
            newest = max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
        except FileNotFoundError:
            continue
        if newest < oldest:
            shutil.rmtree(folder, ignore_errors=True)
