"""Who uses the terminal: a debugger has it for itself, while nothing is drawn and the other processes wait."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlu.storage.locks import hold_lock, is_locked

REFRESHES_PER_S = 4
"""of live bars, which look this often whether a debugger has the terminal"""
TERMINAL = "/dev/tty"
"""the terminal that a process was started from, whatever its standard input and output are"""


def is_ours() -> bool:
    """Return whether this process was started from a terminal and may read from it: it is not in the background."""
    try:
        descriptor = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def held() -> Iterator[None]:
    """Have the terminal for this process in the block; other processes that want it wait without a limit."""
    with hold_lock(_lock(), wait_s=float("inf"), optional=True, what="the terminal"):
        yield


def is_held() -> bool:
    """Return whether a process, also this one, has the terminal for itself."""
    return is_locked(_lock())


def _lock() -> Path:
    # The processes of one terminal share a session. Its number is free again only after all of them have ended.
    return Path(tempfile.gettempdir()) / f"nlu-terminal-{os.getuid()}-{os.getsid(0)}"
