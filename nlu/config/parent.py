"""A process that ends with the one that started it."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with(parent: int, number: signal.Signals) -> None:
    """Make the kernel send a signal to this process when its parent, process `parent`, ends. Only Linux can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        # If the parent ended before the kernel was asked, no signal would come.
        if os.getppid() != parent:
            signal.raise_signal(number)
