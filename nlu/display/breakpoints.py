"""What `breakpoint()` does in a run."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nlu.display import terminal

log = logging.getLogger(__name__)


@contextmanager
def breakpoints(rank: int, world_size: int) -> Iterator[None]:
    """Make `breakpoint()` in the block stop at this terminal; without one, it is reported and the run continues.

    A debugger that the user has chosen, as IDEs, pytest and PYTHONBREAKPOINT do, stays.
    """
    before = sys.breakpointhook
    if before is not sys.__breakpointhook__ or "PYTHONBREAKPOINT" in os.environ:
        yield
        return
    passed: set[tuple[str, int]] = set()

    def stop(*_: object, **__: object) -> None:
        frame: FrameType = sys._getframe(1)
        if terminal.is_ours():
            from nlu.display.debugger import stop_at

            stop_at(frame, rank, world_size)
        elif (place := (frame.f_code.co_filename, frame.f_lineno)) not in passed:
            passed.add(place)
            log.warning("breakpoint() at %s:%d is passed: the run has no terminal", *place)

    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = before
