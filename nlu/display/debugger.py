"""Python's debugger in a run, which may have several processes on one terminal.

`breakpoint()` in a process gives it the terminal until the user continues. Other processes that meet a `breakpoint()`
wait for their turn, and all others wait in their next exchange. Standard input of a worker is not the terminal, so it
is opened here.
"""

import multiprocessing
import os
import pdb
import signal
import sys
import time
from contextlib import ExitStack
from types import FrameType
from typing import Any

from nlu.display import terminal
from nlu.display.progress import REFRESHES_PER_S

QUITTING = "The run stops after this step and saves its state; Ctrl-C twice ends it at once."


class Debugger(pdb.Pdb):
    """pdb with a prompt that names the rank; `quit` stops the run as Ctrl-C does."""

    def __init__(self, rank: int, world_size: int):
        # Without pdb's handler of SIGINT: that of the run stays.
        super().__init__(nosigint=True)
        self._place = f"rank {rank} of {world_size}" if world_size > 1 else ""
        self.prompt = f"(Pdb, rank {rank}) " if world_size > 1 else "(Pdb) "
        self._held = ExitStack()
        self._has_terminal = False

    def interaction(self, *of: Any) -> Any:
        """Talk to the user; the first time, wait for the terminal."""
        if not self._has_terminal:
            self._held.enter_context(terminal.held())
            self._has_terminal = True
            # Whoever draws bars looks this often, and then removes them.
            time.sleep(2 / REFRESHES_PER_S)
            _read_from_terminal()
            self.stdin, self.stdout = sys.stdin, sys.stdout
            if self._place:
                self.message(f"{self._place} has the terminal; the others wait. c continues, q stops the run.")
        return super().interaction(*of)

    def set_continue(self) -> None:
        super().set_continue()
        self._leave()

    def do_quit(self, arg: str) -> bool:
        """q(uit) | exit
        Stop the run after this step and save its state."""
        self.message(QUITTING)
        self.set_continue()
        # The command that has started this worker tells all of them, so that they stop after the same step.
        parent = multiprocessing.parent_process()
        os.kill(os.getpid() if parent is None or parent.pid is None else parent.pid, signal.SIGINT)
        return True

    do_q = do_exit = do_EOF = do_quit

    def _leave(self) -> None:
        self._held.close()
        self._has_terminal = False


_debuggers: dict[tuple[int, int], Debugger] = {}


def stop_at(frame: FrameType, rank: int, world_size: int) -> None:
    """Start the debugger at the next line of a frame. Its commands and breakpoints last as long as the process."""
    key = (rank, world_size)
    if key not in _debuggers:
        _debuggers[key] = Debugger(rank, world_size)
    _debuggers[key].set_trace(frame)


def _read_from_terminal() -> None:
    """Make standard input the terminal, so that prompts have a history and can be edited."""
    if not sys.stdin.isatty():
        descriptor = os.open(terminal.TERMINAL, os.O_RDWR)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
