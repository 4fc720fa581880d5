"""What calls of C need: addresses, memory for the time of a call, and threads, which Python's lock does not hold up."""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor


class Rooms(threading.local):
    """Memory of the last call, of each thread: clearing new pages takes long."""

    _kept: np.ndarray | None = None

    def of(self, size: int) -> int:
        """Return the address of `size` bytes, until the next call."""
        if self._kept is None or len(self._kept) < size:
            self._kept = np.empty(size, np.uint8)
        return int(self._kept.ctypes.data)


def in_parts(compute: Callable[..., None], parts: Sequence[tuple[Any, ...]]) -> None:
    """Call `compute` with each part, with the first one in this thread, and return or raise when all have ended.

    An error of one of them must not free the memory into which others still write.
    """
    waiting = [_helpers().submit(compute, *part) for part in parts[1:]]
    try:
        for part in parts[:1]:
            compute(*part)
    finally:
        wait(waiting)
    for each in waiting:
        each.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """Return the threads that compute parts of a batch."""
    return ThreadPoolExecutor(thread_name_prefix="nlu-compiled")


# A fork has none of its parent's threads.
os.register_at_fork(after_in_child=_helpers.cache_clear)


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return where the numbers of a tensor begin; it must be contiguous and outlive the call."""
    return ctypes.c_void_p(tensor.data_ptr())
