"""Locks between processes, and between hosts that share a folder: the kernel's, which go with whoever holds them.

NFS passes them on to its server since Linux 2.6.12.
"""

import errno
import fcntl
import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nlu.config.errors import UserError

log = logging.getLogger(__name__)

TOLD_AFTER_S = 1.0
PAUSES_S = 0.001, 0.1
"""The shortest and the longest pause between two tries; in between a tenth of what was waited so far."""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class Locked(Exception):
    """Another process holds the lock, and held it for all of the time that was granted."""

    def __init__(self, path: Path):
        super().__init__(f"{path} is locked by another process")
        self.path = path


class NoLocks(UserError):
    """The file system knows no locks."""


@contextmanager
def hold_lock(
    path: str | os.PathLike[str], *, wait_s: float, shared: bool = False, optional: bool = False, what: str = ""
) -> Iterator[None]:
    """Hold the lock that the file at `path` stands for while the block runs.

    An exclusive lock keeps all others out; the file is made if it is absent, its folder must exist. Shared locks keep
    out exclusive ones alone: they never make the file and need no right to write it.
    Whoever holds an exclusive lock may remove the file: others notice and take the lock of the next file at the path.

    Waits up to `wait_s` seconds (0: not at all, inf: for ever) and says so in the log after a second, calling what is
    locked `what`. Raises Locked when they have passed, FileNotFoundError where there is nothing to share, NoLocks where
    the file system has none; with `optional` the block then runs without.
    """
    path = Path(path)
    try:
        descriptor = _taken(path, wait_s, shared, what or str(path))
    except NoLocks:
        if not optional:
            raise
        yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_folder(folder: Path, lock: str, *, wait_s: float, optional: bool = False, what: str = "") -> Iterator[bool]:
    """Make a folder if it is absent, and hold the lock of this name in it; gives whether the folder was made here.

    Whoever holds the lock may take the folder away again: then it is made anew. Raises what `hold_lock` raises.
    """
    with ExitStack() as held:
        while True:
            made_here = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(hold_lock(folder / lock, wait_s=wait_s, optional=optional, what=what))
                break
            except FileNotFoundError:
                # Its last holder was refused, and took the folder along.
                continue
        yield made_here


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether somebody holds an exclusive lock at `path`. Changes nothing; what cannot be read counts as free."""
    try:
        with hold_lock(path, wait_s=0, shared=True, optional=True):
            return False
    except Locked:
        return True
    except OSError:
        return False


def _taken(path: Path, wait_s: float, shared: bool, what: str) -> int:
    began_s, is_told = time.monotonic(), False
    while True:
        descriptor = os.open(path, os.O_RDONLY if shared else os.O_CREAT | os.O_RDWR, 0o666)
        try:
            is_ours = _lock(descriptor, shared, path, wait=is_told and wait_s == math.inf)
            if is_ours and _lies_at(descriptor, path):
                descriptor, taken = -1, descriptor
                return taken
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if is_ours:
            # The lock of a file that its last holder removed says nothing of whoever holds the next one.
            continue
        waited_s = time.monotonic() - began_s
        if waited_s >= wait_s:
            raise Locked(path)
        if waited_s >= TOLD_AFTER_S and not is_told:
            limit = "" if wait_s == math.inf else f", for at most {wait_s:g} s"
            log.info("%s is locked by another process; waiting for it%s", what, limit)
            is_told = True
        time.sleep(min(max(PAUSES_S[0], waited_s / 10), PAUSES_S[1], wait_s - waited_s))


def _lock(descriptor: int, shared: bool, path: Path, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        raise NoLocks(
            f"{path.parent} lies on a file system without locks ({error.strerror}), so two processes could write there "
            "at once; choose a folder on another one, or mount it with locks"
        ) from error
    return True


def _lies_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at the path: its last holder may have removed it, and a third made another."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
