"""The folders of runs and of the cache: whether they are writable, the free space, and the speed of the disk."""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nlu.config.words import path_text
from nlu.diagnosis.check import Check, broken, warning
from nlu.storage.cache import cache_dir

PROBE_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20
LITTLE_BYTES = 5 << 30
"""a checkpoint of BERT-base with its optimizer takes 1.6 GB, and `last` is written beside the older one"""
SLOW_MB_PER_S = 50
OVER_NETWORK = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "glusterfs", "9p")
MB = 1e6


@dataclass(frozen=True)
class Speed:
    """The speed of writing a file to the disk, and of reading it."""

    write_mb_per_s: float
    read_mb_per_s: float


def disks(outputs: Path) -> Iterator[Check]:
    """Check the folder of runs and that of the cache. The speed of each disk is measured once."""
    measured: dict[int, Speed] = {}
    for name, folder, remedy in (
        ("outputs", outputs, "set hydra.run.dir to a folder that can be written"),
        ("cache", cache_dir(), "set the environment variable NLU_CACHE to a folder that can be written"),
    ):
        try:
            yield _disk(name, folder, measured)
        except OSError as error:
            yield broken(name, f"{path_text(folder)} cannot be written: {error.strerror or error}", remedy)


def _disk(name: str, folder: Path, measured: dict[int, Speed]) -> Check:
    # A folder that does not exist yet is on the file system of the nearest one above it. doctor creates none.
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(0, f"{path_text(there)} is a file")
    probe = there / f".nlu-doctor-{secrets.token_hex(4)}"
    try:
        has_locks = _write_small(probe)
        state = os.statvfs(there)
        free_bytes = state.f_bavail * state.f_frsize
        device = there.stat().st_dev
        # The probe must not fill the disk under a run that is training there.
        if device not in measured and free_bytes > 2 * PROBE_BYTES:
            measured[device] = _speed(probe)
    finally:
        probe.unlink(missing_ok=True)
    kind = _file_system(there)
    says = f"{path_text(folder)}{'' if folder.exists() else ' (to be made)'} on {kind}: {free_bytes / 1e9:,.1f} GB free"
    if speed := measured.get(device):
        says += f", {speed.write_mb_per_s:,.0f} MB/s written, {speed.read_mb_per_s:,.0f} MB/s read"
    if state.f_files and not state.f_favail:
        return broken(name, f"{says}, but no more files", "remove files: all inodes of the disk are used")
    if free_bytes < PROBE_BYTES:
        return broken(name, says, "free some space: python -m nlu.report clean outputs shows what can go")
    if not has_locks:
        return warning(
            name,
            f"{says}; the file system does not support locks, so two processes may write to one run",
            "choose a folder on a disk of this machine, or mount it with locks",
        )
    if free_bytes < LITTLE_BYTES:
        return warning(name, says, "free some space: python -m nlu.report clean outputs shows what can go")
    if speed and speed.write_mb_per_s < SLOW_MB_PER_S:
        return warning(name, says, "save rarely (trainer.save_interval), or choose a faster disk")
    if name == "cache" and kind.startswith(OVER_NETWORK):
        return warning(name, says, "set NLU_CACHE to a disk of this machine: training reads its rows from there")
    return Check(name, says)


def _write_small(probe: Path) -> bool:
    """Write a file; returns whether it could be locked."""
    with open(probe, "wb") as file:
        file.write(b"nlu")
        try:
            # Runs are protected by this kind of lock, which some network file systems do not have.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _speed(probe: Path) -> Speed:
    # Random, since some file systems compress, and zeros would not take any space.
    block = os.urandom(BLOCK_BYTES)
    begun_s = time.perf_counter()
    with open(probe, "wb") as file:
        for _ in range(PROBE_BYTES // BLOCK_BYTES):
            file.write(block)
        file.flush()
        # Without it, the time would be that of copying into the memory of the system.
        os.fsync(file.fileno())
        written_s = time.perf_counter() - begun_s
        if hasattr(os, "posix_fadvise"):
            # Drop the file from memory, so that reading measures the disk.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begun_s = time.perf_counter()
    with open(probe, "rb", buffering=0) as file:
        while file.read(BLOCK_BYTES):
            pass
    read_s = time.perf_counter() - begun_s
    return Speed(PROBE_BYTES / MB / written_s, PROBE_BYTES / MB / read_s)


def _file_system(folder: Path) -> str:
    """Return the type of the file system of a folder."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "a disk"
    mounted = [(line.split()[1].replace("\\040", " "), line.split()[2]) for line in lines]
    above = [(place, kind) for place, kind in mounted if folder.resolve().is_relative_to(place)]
    # Mounts lie within one another; the longest path is the one that holds the folder. /proc/mounts writes a blank as
    # \040.
    return max(above, key=lambda pair: len(pair[0]), default=("", "a disk"))[1]
