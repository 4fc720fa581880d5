"""Trials wait until a queue that is full or does not answer takes their jobs, unless the search is stopped."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nlu.config import stopping

LOOK_S = 0.2
"""how often a waiting thread checks whether it should stop"""

_turn = threading.Lock()
"""only one of the waiting trials asks the queue: hundreds would overload the controller of a cluster"""
_over: ContextVar[threading.Event | None] = ContextVar("_over", default=None)
"""set when the search of this context ends; a process may run several searches, one after another"""


@contextmanager
def of_a_search() -> Iterator[None]:
    """Mark the block as a search. Its threads run in copies of its context."""
    before = _over.set(threading.Event())
    try:
        yield
    finally:
        give_up()
        _over.reset(before)


def give_up() -> None:
    """Make the waiting threads of this search end soon, since the search ends."""
    if (over := _over.get()) is not None:
        over.set()


def is_over() -> bool:
    over = _over.get()
    return (over is not None and over.is_set()) or stopping.received() is not None


def pause(seconds: float) -> bool:
    """Sleep; returns False at once if the search is over."""
    end_s = time.monotonic() + seconds
    while not is_over():
        if (left_s := end_s - time.monotonic()) <= 0:
            return True
        time.sleep(min(left_s, LOOK_S))
    return False


@contextmanager
def in_turn(why: str) -> Iterator[None]:
    """Wait until no other trial waits in this block, or the search is over; the first one prints why trials wait."""
    has_turn = _turn.acquire(blocking=False)
    if has_turn:
        print(
            f"nlu: {why}; trials wait, and this search continues by itself; Ctrl-C ends it, and the same command "
            "continues it",
            file=sys.stderr,
        )
    # With a timeout, so that a waiting thread notices the end of the search.
    while not has_turn and not is_over():
        has_turn = _turn.acquire(timeout=LOOK_S)
    try:
        yield
    finally:
        if has_turn:
            _turn.release()
