"""What to do where whoever reads the output has seen enough, as `head` has."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def printing(to: TextIO | None = None) -> Iterator[None]:
    """Print at once what the block prints, which does nothing else and prints to one stream alone, by default standard
    output: it ends where the reader of that leaves, as no error."""
    try:
        yield
        (to or sys.stdout).flush()
    except BrokenPipeError:
        leave_output(to)


def leave_output(to: TextIO | None = None) -> None:
    """Send what is still to be printed nowhere: nothing more can be flushed to a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (to or sys.stdout).fileno())
