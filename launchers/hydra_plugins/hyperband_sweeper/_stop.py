"""A search that is asked to stop: by which signal, and what becomes of the jobs that are under way."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nlu.config.words import counted
from nlu.display.jobs import choose
from nlu.launching.listing import cancel_all

from ._board import Board
from ._slots import Slots, terminate_jobs

WAIT_S, AGAIN_S = 60.0, 2.0
REFUSED_S = 15.0
"""how much later than the first job another may be refused, where nobody waits for the search to stop"""


class Stop:
    """Hears that the search shall stop, and ends its jobs in order."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """the signal that asked to stop, or what a job that was stopped stands for"""

    @contextlib.contextmanager
    def heard(self, has_own_processes: bool) -> Iterator[None]:
        """Have SIGTERM, SIGUSR1 and Ctrl-C end the search in order, where its jobs run in processes of their own."""
        if not has_own_processes:
            yield
            return
        before = {
            number: signal.signal(number, self._asked) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked(self, number: int, frame: Any) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    def end_jobs(self, slots: Slots, running: set[int], folder: Path, board: Board) -> None:
        """Have local jobs save their state and end; those on other machines go on, and are found again."""
        left = set(running)
        if slots.is_threaded and not slots.is_local:
            # What refused one job refuses others, which end by themselves soon after.
            wait_s = REFUSED_S if self.signal is None else AGAIN_S
            while left and (ended := slots.next_ended(wait_s)) is not None:
                left.discard(ended.number)
        if not left:
            return
        one = len(left) == 1
        numbers = ", ".join(map(str, sorted(left)))
        under_way = f"trial {numbers} is under way" if one else f"trials {numbers} are under way"
        if not slots.is_local:
            if self.signal == signal.SIGINT and _cancels(under_way, folder, board):
                return
            board.say(f"{under_way} elsewhere, and {'goes' if one else 'go'} on there")
            return
        board.say(f"{under_way}: {'it saves its state and ends' if one else 'they save their state and end'}")
        deadline_s = time.monotonic() + WAIT_S
        while left and time.monotonic() < deadline_s:
            # More than once: a job that is just starting does not listen yet.
            terminate_jobs()
            if (last := slots.next_ended(AGAIN_S)) is not None:
                left.discard(last.number)


def _cancels(under_way: str, folder: Path, board: Board) -> bool:
    """Ask whether to cancel the jobs, and do so."""
    board.stop_bar()
    if choose(f"{under_way} elsewhere", {"c": "cancel", "l": "leave"}) != "c":
        return False
    count = cancel_all(folder.absolute())
    board.say(f"cancelled {counted(count, 'job')}; their trials go on from what they saved")
    return True
