"""The memory of this machine and of this process: what is free, and the largest amount that some work has taken."""

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")


def of_machine() -> tuple[int, int]:
    """Return free and total bytes, bounded by the limit of a container."""
    known = _fields(Path("/proc/meminfo"))
    free_bytes, total_bytes = known["MemAvailable"], known["MemTotal"]
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):
        return free_bytes, total_bytes
    # /proc/meminfo shows the whole machine inside a container too.
    return min(free_bytes, limit - used + _reclaimable()), min(total_bytes, limit)


def _reclaimable() -> int:
    """Return the bytes of files in memory that count as used by the container, but are given up when it needs them."""
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("inactive_file ")))
    except (OSError, ValueError, StopIteration):
        return 0


def _fields(path: Path) -> dict[str, int]:
    """Return the sizes in a file of /proc, in bytes."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0].removesuffix(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


class Peak:
    """The bytes of memory that this process has taken beyond those at the start of this object, at most."""

    def __init__(self) -> None:
        self._before = _fields(PROCESS / "status")["VmRSS"]

    def restart(self) -> None:
        """Forget the peak so far. Where the system does not allow that, earlier peaks count too, which is too much."""
        try:
            (PROCESS / "clear_refs").write_text("5")
        except OSError:
            return

    def bytes(self) -> int:
        """Return the most bytes since the last `restart`, beyond those at the start of this object."""
        return max(0, _fields(PROCESS / "status")["VmHWM"] - self._before)
