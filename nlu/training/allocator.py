"""Settings of the C library's memory allocator."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
"""the amount of free memory at the end of the heap that is not returned to the system"""
LARGEST_BYTES = 32 << 20
"""larger blocks are always allocated by the system; this is the maximum of glibc"""
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next batch; returns whether it does.

    By default it may return the memory of a batch to the system, which clears the pages again when the next batch needs
    them: up to a tenth of the time of scoring on a CPU. Other C libraries, and settings in the environment, are not
    changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in OWN_SETTINGS):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
