"""What the C library does with memory that is freed."""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
"""free memory at the end of the heap that stays with the process"""
LARGEST_BYTES = 32 << 20
"""larger blocks are the system's own; glibc allows no more"""
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have glibc keep what a batch frees for the next one; returns whether it does.

    By itself it gives the blocks of a batch back, depending on what was allocated before, and the system clears them
    page by page when the next batch asks for them: up to a tenth of the time in which a set is scored on a CPU. Another
    C library, and what the environment sets, are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in OWN_SETTINGS):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
