"""What becomes of running jobs when a search is asked to stop."""

import signal
import time
from pathlib import Path

from nlu.config import stopping
from nlu.config.words import counted
from nlu.display.jobs import choose
from nlu.launching.listing import cancel_all
from nlu.launching.waiting import give_up

from ._board import Board
from ._slots import Slots, terminate_jobs

WAIT_S, AGAIN_S = 60.0, 2.0
REFUSED_S = 15.0
"""how much later than the first job another one may be refused, if the search ends for that and not by a signal"""


def end_jobs(slots: Slots, running: set[int], folder: Path, board: Board) -> None:
    """Have local jobs save their state and end. Jobs on other machines continue, and are found again."""
    # A job in this process has ended by now.
    left = set(running) if slots.is_threaded else set()
    # Threads that wait for room in a queue stop waiting.
    give_up()
    if not slots.is_local:
        # A queue that refused one job soon refuses the others too, and their launches end.
        wait_s = REFUSED_S if stopping.received() is None else AGAIN_S
        while left and (ended := slots.next_ended(wait_s)) is not None:
            left.discard(ended.number)
    if not left:
        return
    one = len(left) == 1
    numbers = ", ".join(map(str, sorted(left)))
    under_way = f"trial {numbers} is under way" if one else f"trials {numbers} are under way"
    if not slots.is_local:
        if stopping.received() == signal.SIGINT and _cancels(under_way, folder, board):
            return
        board.say(f"{under_way} elsewhere, and {'continues' if one else 'continue'} there")
        return
    board.say(f"{under_way}: {'it saves its state and ends' if one else 'they save their state and end'}")
    deadline_s = time.monotonic() + WAIT_S
    while left and time.monotonic() < deadline_s:
        # Repeated, since a job that is just starting does not listen yet.
        terminate_jobs()
        if (last := slots.next_ended(AGAIN_S)) is not None:
            left.discard(last.number)


def _cancels(under_way: str, folder: Path, board: Board) -> bool:
    """Ask whether to cancel the jobs, and do so."""
    board.stop_bar()
    if choose(f"{under_way} elsewhere", {"c": "cancel", "l": "leave"}) != "c":
        return False
    count = cancel_all(folder.absolute())
    board.say(f"cancelled {counted(count, 'job')}; their trials continue from what they saved")
    return True
