"""What this machine computes fast: the instruction sets of its processor."""

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


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
