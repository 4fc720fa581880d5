"""The folders of runs and of the cache: whether they can be written and locked, and the free space."""

import secrets
import shutil
from pathlib import Path

from nlu.config.sentences import path_text
from nlu.diagnosis.check import Check, warning
from nlu.storage.locks import hold_lock

LITTLE_BYTES = 5 << 30
"""a checkpoint of BERT-base with its optimizer takes 1.6 GB, and `last` is written beside the older one"""


def disk(name: str, folder: Path) -> Check:
    """Check a folder. Raises OSError if it cannot be written, and NoLocks if it cannot be locked, as runs need."""
    # A folder that does not exist yet is on the file system of the nearest one above it. doctor creates none.
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    probe = there / f".nlu-doctor-{secrets.token_hex(4)}"
    try:
        with hold_lock(probe, wait_s=0):
            free_bytes = shutil.disk_usage(there).free
    finally:
        probe.unlink(missing_ok=True)
    says = f"{path_text(folder)}{'' if folder.exists() else ' (to be made)'}: {free_bytes / 1e9:,.1f} GB free"
    if free_bytes < LITTLE_BYTES:
        return warning(name, says, "free some space: python -m nlu.report clean outputs shows what can go")
    return Check(name, says)
