"""Wait until a queue that is full or does not answer accepts a job, unless the search is stopped."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from nlu.config import stopping
from nlu.jobs.queue import JobRefused, QueueFull
from nlu.storage.temporary import Pauses

FULL = Pauses(5.0, 120.0)
"""how long to wait before a full queue is asked again: it has room as soon as any job of this user ends"""
LOOK_S = 0.2
"""how often a waiting thread checks whether it should stop"""
Tickets = TypeVar("Tickets")

_turn = threading.Lock()
"""only one of the waiting trials asks the queue: hundreds would overload the controller of a cluster"""
_counting = threading.Lock()
_waiting = 0
_over: ContextVar[threading.Event | None] = ContextVar("_over", default=None)
"""set when the search of this context ends; a process may run several searches, one after another"""
unwanted: ContextVar[threading.Event | None] = ContextVar("unwanted", default=None)
"""set when the trial of this context, whose job waits, is stopped for good"""


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
    events = (_over.get(), unwanted.get())
    return any(event is not None and event.is_set() for event in events) or stopping.received() is not None


def pause(seconds: float) -> bool:
    """Sleep; returns False at once if the search is over."""
    end_s = time.monotonic() + seconds
    while not is_over():
        if (left_s := end_s - time.monotonic()) <= 0:
            return True
        time.sleep(min(left_s, LOOK_S))
    return False


def when_there_is_room(submit: Callable[[], Tickets]) -> Tickets:
    """Submit the job of a trial, repeatedly while its queue is full. Raises JobRefused if the search is stopped."""
    try:
        return submit()
    except QueueFull as full:
        with announced(f"{full}; trials wait until jobs of yours have left the queue"):
            return _in_turn(submit, full)


def _in_turn(submit: Callable[[], Tickets], full: QueueFull) -> Tickets:
    # With a timeout, so that a waiting thread notices the end of the search.
    while not _turn.acquire(timeout=LOOK_S):
        if is_over():
            raise _stopped(full)
    try:
        for pause_s in FULL:
            if not pause(pause_s):
                raise _stopped(full)
            try:
                return submit()
            except QueueFull as again:
                full = again
    finally:
        _turn.release()
    raise AssertionError("the pauses are endless")


def _stopped(full: QueueFull) -> JobRefused:
    return JobRefused(f"{full}; the search was stopped while this job waited")


@contextmanager
def announced(why: str) -> Iterator[None]:
    """Print that trials wait, for the first waiting trial."""
    global _waiting
    with _counting:
        _waiting += 1
        is_first = _waiting == 1
    if is_first:
        print(
            f"nlu: {why}, and this search continues by itself; Ctrl-C ends it, and the same command continues it",
            file=sys.stderr,
        )
    try:
        yield
    finally:
        with _counting:
            _waiting -= 1
