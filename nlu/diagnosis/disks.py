"""The folders of runs and of the cache: whether they can be written and locked, and the free space."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from nlu.config.words import path_text
from nlu.diagnosis.check import Check, broken, warning
from nlu.storage.cache import cache_dir

LITTLE_BYTES = 5 << 30
"""a checkpoint of BERT-base with its optimizer takes 1.6 GB, and `last` is written beside the older one"""


def disks(outputs: Path) -> Iterator[Check]:
    """Check the folder of runs and that of the cache."""
    for name, folder, remedy in (
        ("outputs", outputs, "set hydra.run.dir to a folder that can be written"),
        ("cache", cache_dir(), "set the environment variable NLU_CACHE to a folder that can be written"),
    ):
        try:
            yield _disk(name, folder)
        except OSError as error:
            yield broken(name, f"{path_text(folder)} cannot be written: {error.strerror or error}", remedy)


def _disk(name: str, folder: Path) -> Check:
    # A folder that does not exist yet is on the file system of the nearest one above it. doctor creates none.
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(0, f"{path_text(there)} is a file")
    has_locks = _can_lock(there / f".nlu-doctor-{secrets.token_hex(4)}")
    state = os.statvfs(there)
    free_bytes = state.f_bavail * state.f_frsize
    says = f"{path_text(folder)}{'' if folder.exists() else ' (to be made)'}: {free_bytes / 1e9:,.1f} GB free"
    if not has_locks:
        return warning(
            name,
            f"{says}; the file system does not support locks, so two processes may write to one run",
            "choose a folder on a disk of this machine, or mount it with locks",
        )
    if free_bytes < LITTLE_BYTES:
        return warning(name, says, "free some space: python -m nlu.report clean outputs shows what can go")
    return Check(name, says)


def _can_lock(probe: Path) -> bool:
    """Write a file, remove it again, and return whether it could be locked."""
    try:
        with open(probe, "wb") as file:
            file.write(b"nlu")
            try:
                # Runs are protected by this kind of lock, which some network file systems do not have.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        return True
    finally:
        probe.unlink(missing_ok=True)
