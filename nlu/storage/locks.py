"""Locks between processes, and between hosts that share a folder; and whether a former writer is known to be over.

The locks are the kernel's, which end with the holding process. NFS forwards them to its server since Linux 2.6.12.

On the machine on which a process ran, its end is certain. Clocks and silence are never asked: a suspended process is
silent and alive. Where nothing is known, a user says that a writer is gone (--take), and a fence on what was held keeps
one that wakes up from writing (docs/guarantees.md, "Fences").
"""

import errno
import fcntl
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError

log = logging.getLogger(__name__)

JOB_VARIABLE = "NLU_JOB"
"""the environment variable with the job of a launcher whose queue may start it again"""

LOG_AFTER_S = 1.0
PAUSES_S = 0.001, 0.1
"""the shortest and the longest pause between two tries; in between, a tenth of the time waited so far"""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


def identity_of(pid: int) -> dict[str, Any]:
    """Return what identifies a process of this machine; only its number if /proc is unavailable.

    `machine` identifies one boot of one machine and one container on it: `BOOT NAMESPACE`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        # Field 22, the ticks from boot to start, counted from the end of the name, which may contain spaces.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return {"pid": pid}
    return {"pid": pid, "machine": f"{boot} {namespace}", "started": started}


def has_ended(holder: Mapping[str, object]) -> bool:
    """Return whether a process is known to have ended: it ran on this machine and does not run any more."""
    here, pid = identity_of(os.getpid()), holder.get("pid")
    if "machine" not in holder or holder["machine"] != here.get("machine") or not isinstance(pid, int):
        return False
    there = identity_of(pid)
    # The number of a process that ended may belong to another one by now.
    if "started" in there:
        return there["started"] != holder.get("started")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # A process of another user, which /proc hides (hidepid).
        pass
    return False


def elapsed_s() -> float:
    """Return seconds of a clock that also runs while this process is stopped or its machine is suspended.

    A holder uses it to decide whether what it knew a moment ago may have changed since.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def own_writer() -> dict[str, Any]:
    """Return what identifies this process among all hosts: plain values, with an `id` that no other call returns."""
    own_id, job, start = uuid.uuid4().hex, os.environ.get(JOB_VARIABLE), uuid.uuid4().hex
    if job is None and (slurm := os.environ.get("SLURM_JOB_ID")):
        # Several processes of one job have the same count.
        job = f"slurm {os.environ.get('SLURM_CLUSTER_NAME', '')} {slurm}"
        start = os.environ.get("SLURM_RESTART_COUNT", "0")
    return {"id": own_id, "host": socket.gethostname(), "job": job, "start": start, **identity_of(os.getpid())}


def may_follow(own: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Return whether a writer is known to be over: it ended on this machine, or its queue has started it again."""
    is_restart = former.get("job") == own["job"] is not None and former.get("start") != own["start"]
    is_here = all(former.get(name) == own.get(name) for name in ("pid", "machine", "started"))
    return is_restart or is_here or has_ended(former)


class Locked(Exception):
    """Another process holds the lock, and held it for the whole permitted time."""

    def __init__(self, path: Path):
        super().__init__(f"{path} is locked by another process")
        self.path = path


class NoLocks(UserError):
    """The file system does not support locks."""


@contextmanager
def hold_lock(path: str | os.PathLike[str], *, wait_s: float, optional: bool = False, what: str = "") -> Iterator[None]:
    """Hold the lock of the file at `path` while the block runs.

    The file is created if necessary, but not its folder. The holder may remove it: waiting processes notice and lock
    the next file at the path.

    Waits for up to `wait_s` seconds (0: not at all, inf: without limit); after a second the log says so, and calls the
    locked thing `what`. Raises Locked when this time has passed, NoLocks if the file system does not support locks;
    with `optional` the block then runs without a lock.
    """
    path = Path(path)
    try:
        descriptor = _taken(path, wait_s, what or str(path))
    except NoLocks:
        if not optional:
            raise
        yield
        return
    try:
        yield
    finally:
        # Closing the descriptor releases the lock.
        os.close(descriptor)


@contextmanager
def hold_folder(folder: Path, lock: str, *, wait_s: float, optional: bool = False, what: str = "") -> Iterator[bool]:
    """Create a folder if necessary, and hold the lock of this name in it; gives whether the folder was created here.

    A folder that the previous holder removes is created again. Raises what `hold_lock` raises.
    """
    with ExitStack() as held:
        while True:
            made_here = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(hold_lock(folder / lock, wait_s=wait_s, optional=optional, what=what))
                break
            except FileNotFoundError:
                # The previous holder was refused, and removed the folder.
                continue
        yield made_here


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process holds the lock at `path`. A file that cannot be read counts as unlocked."""
    try:
        # Nothing is created, and a file of another user suffices.
        with open(path, "rb") as file:
            return not _lock(file.fileno(), Path(path), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, NoLocks):
        return False


def _taken(path: Path, wait_s: float, what: str) -> int:
    """Return a descriptor of the file at `path` that holds its lock."""
    began_s, is_logged = time.monotonic(), False
    while True:
        # NFS locks exclusively only what is open for writing. The mask of the process applies to 0o666.
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            # The kernel waits only after the log has said so; it wakes this process as soon as the lock is free.
            waits = 0 if is_logged and wait_s == math.inf else fcntl.LOCK_NB
            is_ours = _lock(descriptor, path, fcntl.LOCK_EX | waits)
            if is_ours and _is_at(descriptor, path):
                descriptor, taken = -1, descriptor
                return taken
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if is_ours:
            # The previous holder removed the file, and the next one at the path may be locked.
            continue
        waited_s = time.monotonic() - began_s
        if waited_s >= wait_s:
            raise Locked(path)
        if waited_s >= LOG_AFTER_S and not is_logged:
            limit = "" if wait_s == math.inf else f", for at most {wait_s:g} s"
            log.info("%s is locked by another process; waiting for it%s", what, limit)
            is_logged = True
        time.sleep(min(max(PAUSES_S[0], waited_s / 10), PAUSES_S[1], wait_s - waited_s))


def _lock(descriptor: int, path: Path, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        raise NoLocks(
            f"{path.parent} is on a file system without locks ({error.strerror}), so two processes could write there "
            "at once; choose a folder on another one, or mount it with locks"
        ) from error
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
