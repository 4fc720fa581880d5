"""What this machine computes fast, and on how many cores: its processor."""

import os
from functools import cache
from pathlib import Path

from nlu.runs.provenance import usable_cores

CPUINFO = Path("/proc/cpuinfo")
CPUS = Path("/sys/devices/system/cpu")
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@cache
def instruction_sets() -> frozenset[str]:
    """Return the names of the processor's instruction sets as Linux gives them, such as avx2; empty if unknown."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    # x86 calls them flags, Arm features.
    names = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(names, []))


def idle_cores() -> int:
    """Return how many cores this process may compute on at full speed, at least 1.

    Two threads of a core count once, the limit of a container counts, and so does OMP_NUM_THREADS, by which a user or a
    search gives a run a part of the machine.
    """
    count = usable_cores()
    if hasattr(os, "sched_getaffinity"):
        siblings = set()
        for cpu in os.sched_getaffinity(0):
            try:
                siblings.add((CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text())
            except OSError:
                siblings.add(str(cpu))
        count = len(siblings)
    count = int(min(cpu_limit(), count))
    given = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(count, int(given)) if given.isdecimal() else count)


def cpu_limit() -> float:
    """Return how many cores' time the container of this process may use; infinity without a limit."""
    try:
        amount, period = CPU_LIMIT.read_text().split()
        return int(amount) / int(period)
    except (OSError, ValueError):
        # Without a limit it is `max`.
        return float("inf")
