"""A journal in a local file that stays usable when a writer is killed.

Optuna's own locks are files: if a killed process leaves one behind, other processes wait for its grace period of 30 s,
and a line that the kill cut makes the next line unreadable. This lock belongs to the kernel, which releases it when its
holder ends, and the next holder removes a cut line. Readers, also Optuna's own, such as its dashboard, take no lock and
change nothing.
"""

import json
import math
import os
import shlex
import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

from optuna.storages.journal import JournalFileBackend

from nlu.config.errors import UserError
from nlu.storage.locks import hold_lock

_BLOCK_BYTES = 4096


class KernelLock:
    """An exclusive lock between processes and threads; acquiring it removes a cut line from the journal.

    The lock file lies beside the journal. NFS forwards such locks to the server since Linux 2.6.12.
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


class JournalFile(JournalFileBackend):
    """The journal in the file at `path`, which is created if it is absent; its folder must exist.

    Reading raises UserError if a line is damaged. No kill does that: a cut last line is not read, and then removed.
    """

    def __init__(self, path: str):
        super().__init__(path, lock_obj=KernelLock(path))  # type: ignore[arg-type]  # wants one of Optuna's locks

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Yield the entries from this number on."""
        try:
            for entry in super().read_logs(log_number_from):
                if not isinstance(entry, dict):
                    raise ValueError("no entry of a journal")
                yield entry
        except ValueError as error:
            path = self._file_path
            if (number := _damaged_line(path)) is None:
                raise
            raise UserError(
                f"{path} is damaged in line {number}; restore it from a copy, or remove that line, which loses what it "
                f"noted: sed -i {number}d {shlex.quote(path)}; if it began a trial ('\"op_code\":4'), choose another "
                "hydra.sweep.dir"
            ) from error


def _damaged_line(path: str) -> int | None:
    """Return the number of the first line of a journal that is no entry."""
    with open(path, "rb") as file:
        return next((number for number, line in enumerate(file, start=1) if not _is_entry(line)), None)


def _is_entry(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
