"""What `breakpoint()` does in a run: one of its processes at a time has the terminal, until the user continues.

Meanwhile nothing is drawn, and the other processes wait.
"""

import os
import pdb
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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


class _Debugger(pdb.Pdb):
    # pdb has a `stack` of its own.
    of_terminal = ExitStack()
    has_terminal = False

    def interaction(self, *of: Any) -> Any:
        if not self.has_terminal:
            self.of_terminal.enter_context(held())
            # Whoever draws bars looks this often, and then removes them.
            time.sleep(2 / REFRESHES_PER_S)
            self.has_terminal = True
        return super().interaction(*of)

    def set_continue(self) -> None:
        super().set_continue()
        self.of_terminal.close()
        self.has_terminal = False

    def do_quit(self, arg: str) -> bool:
        """Stop the run after this step and save its state."""
        self.message("The run stops after this step and saves its state; Ctrl-C twice ends it at once.")
        self.set_continue()
        os.killpg(os.getpgrp(), signal.SIGINT)
        return True

    do_q = do_exit = do_EOF = do_quit


@contextmanager
def breakpoints(rank: int, world_size: int) -> Iterator[None]:
    """Make `breakpoint()` in the block stop at this terminal, if any; a debugger that the user has chosen stays."""
    before, debugger = sys.breakpointhook, None

    def stop(*_: object, **__: object) -> None:
        nonlocal debugger
        frame = sys._getframe(1)
        if not is_ours():
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return warnings.warn(f"breakpoint() at {place} is passed: the run has no terminal", stacklevel=2)
        if debugger is None:
            # Standard input of a worker is not the terminal. The run's own handler of SIGINT stays.
            debugger = _Debugger(stdin=open(TERMINAL), stdout=open(TERMINAL, "w"), nosigint=True)
            debugger.prompt = f"(Pdb, rank {rank}) " if world_size > 1 else "(Pdb) "
        debugger.set_trace(frame)

    if before is sys.__breakpointhook__ and "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = before
