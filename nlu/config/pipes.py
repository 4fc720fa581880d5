"""What to do where whoever reads the output has seen enough, as `head` has."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def printing() -> Iterator[None]:
    """Print at once what the block prints, which does nothing else: it ends where a reader leaves, as no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        leave_output()


def leave_output() -> None:
    """Send what is still to be printed nowhere: nothing more can be flushed to a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
