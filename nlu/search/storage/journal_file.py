"""A journal in a local file that stays usable when a writer is killed.

Optuna's own locks are files: if a killed process leaves one behind, other processes wait for its grace period of 30 s,
and a line that the kill cut makes the next line unreadable. This lock belongs to the kernel, which releases it when its
holder ends, and the next holder removes a cut line.
"""

import math
import os
import threading
from contextlib import ExitStack

from optuna.storages.journal import JournalFileBackend

from nlu.storage.locks import hold_lock

_BLOCK_BYTES = 4096


class KernelLock:
    """An exclusive lock between processes and threads; acquiring it removes a cut line from the journal.

    The lock file lies beside the journal, so Optuna's own readers, such as its dashboard, do not interfere. NFS
    forwards such locks to the server since Linux 2.6.12.
    """

    def __init__(self, path: str):
        self._path = path
        # Optuna shares one lock among threads, but each thread must release its own file.
        self._held = threading.local()

    def __reduce__(self) -> tuple[type["KernelLock"], tuple[str]]:
        # A copy, such as that of another process, holds nothing.
        return KernelLock, (self._path,)

    def acquire(self) -> bool:
        with ExitStack() as held:
            held.enter_context(hold_lock(f"{self._path}.flock", wait_s=math.inf, what=self._path))
            # Under the lock, so that no line is cut while its writer is alive.
            remove_cut_line(self._path)
            self._held.stack = held.pop_all()
        return True

    def release(self) -> None:
        self._held.stack.close()


def remove_cut_line(path: str) -> None:
    """Truncate a file after its last line break; a file without one becomes empty."""
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        kept = end
        # From the end, in blocks: a journal may be large, and a cut line is short.
        while kept > 0:
            start = max(0, kept - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(kept - start)
            if (found := block.rfind(b"\n")) >= 0:
                kept = start + found + 1
                break
            kept = start
        if kept < end:
            file.truncate(kept)


def journal_file(path: str) -> JournalFileBackend:
    """Return a journal in the file at `path`, which is created if it is absent; its folder must exist."""
    return JournalFileBackend(path, lock_obj=KernelLock(path))  # type: ignore[arg-type]  # wants one of Optuna's locks
