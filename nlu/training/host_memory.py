"""The memory of this machine and of this process: what is free, and the largest amount that some work has taken."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""files of a control group, and the name in its memory.stat of files in memory that are given up when it needs more"""


def of_machine() -> tuple[int, int]:
    """Return free and total bytes, bounded by the limits of a container, a service or a Slurm job."""
    known = _fields(Path("/proc/meminfo"))
    found = [(known["MemAvailable"], known["MemTotal"])]
    for group, names in _groups():
        # Without a limit, or a group that is not visible in a container.
        with suppress(OSError, ValueError):
            found.append(_limited(group, *names))
    return min(free for free, _ in found), min(total for _, total in found)


def _groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the control groups of this process and those above it, of versions 2 and 1, with the names of their files;
    /proc/meminfo shows the whole machine inside a container too."""
    own = (PROCESS / "cgroup").read_text() if (PROCESS / "cgroup").exists() else ""
    for mark, root, names in (("0::", CGROUP, V2), (":memory:", CGROUP / "memory", V1)):
        path = next((line.partition(mark)[2] for line in own.splitlines() if mark in line), "")
        place = PurePosixPath(path.lstrip("/"))
        yield from ((root / each, names) for each in (place, *place.parents))


def _limited(group: Path, limit: str, used: str, reclaimable: str) -> tuple[int, int]:
    """Return what is free below the limit of a control group, and the limit."""
    most, taken = (int((group / name).read_text()) for name in (limit, used))
    known = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return most - taken + int(known.get(reclaimable, 0)), most


def _fields(path: Path) -> dict[str, int]:
    """Return the sizes in a file of /proc, in bytes."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].removesuffix(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


def peak_bytes() -> int:
    """Return the most resident bytes of this process since its start."""
    return _fields(PROCESS / "status")["VmHWM"]


class Peak:
    """The bytes of memory that this process has taken beyond those at the start of this object, at most."""

    def __init__(self) -> None:
        self._before = _fields(PROCESS / "status")["VmRSS"]

    def bytes(self) -> int:
        """Return the most bytes so far, beyond those at the start of this object."""
        return max(0, peak_bytes() - self._before)
