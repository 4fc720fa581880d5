"""The memory of this machine and of this process: what is free, and the largest amount that some work has taken."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""files of a control group, and the line of its memory.stat with what can be reclaimed"""


def of_machine() -> tuple[int, int]:
    """Return free and total bytes, bounded by the limits of a container, a service or a Slurm job."""
    known = _fields(Path("/proc/meminfo"))
    free_bytes, total_bytes = known["MemAvailable"], known["MemTotal"]
    for limit, free in limits():
        free_bytes, total_bytes = min(free_bytes, free), min(total_bytes, limit)
    return free_bytes, total_bytes


def limits() -> Iterator[tuple[int, int]]:
    """Yield the limit in bytes, and what is free below it, of each control group that this process is in.

    Of version 2 and 1; /proc/meminfo shows the whole machine inside a container too.
    """
    for names in ((CGROUP / own, V2) for own in _groups("0::")):
        yield from _limit(*names)
    for names in ((CGROUP / "memory" / own, V1) for own in _groups(":memory:")):
        yield from _limit(*names)


def _groups(mark: str) -> Iterator[str]:
    """Yield the control group of this process and those above it, as paths; the last one is the root, ``."""
    try:
        lines = (PROCESS / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = next((line.partition(mark)[2] for line in lines if mark in line), "/")
    path = PurePosixPath(own.lstrip("/"))
    for each in (path, *path.parents):
        yield str(each)


def _limit(group: Path, names: tuple[str, str, str]) -> Iterator[tuple[int, int]]:
    limit_name, used_name, reclaimable = names
    try:
        limit, used = (int((group / name).read_text()) for name in (limit_name, used_name))
    except (OSError, ValueError):
        # Without a limit, or a group that is not visible in a container.
        return
    yield limit, limit - used + _reclaimable(group, reclaimable)


def _reclaimable(group: Path, name: str) -> int:
    """Return the bytes of files in memory that count as used by the group, but are given up when it needs them."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))
    except (OSError, ValueError, StopIteration):
        return 0


def _fields(path: Path) -> dict[str, int]:
    """Return the sizes in a file of /proc, in bytes."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].removesuffix(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


def peak_bytes() -> int:
    """Return the most resident bytes of this process since the last `Peak.restart`, or since its start."""
    return _fields(PROCESS / "status")["VmHWM"]


class Peak:
    """The bytes of memory that this process has taken beyond those at the start of this object, at most."""

    def __init__(self) -> None:
        self._before = _fields(PROCESS / "status")["VmRSS"]

    def restart(self) -> bool:
        """Forget the peak so far; returns False where the system does not allow that. Earlier peaks count then too,
        which is too much."""
        try:
            (PROCESS / "clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def bytes(self) -> int:
        """Return the most bytes since the last `restart`, beyond those at the start of this object."""
        return max(0, peak_bytes() - self._before)
