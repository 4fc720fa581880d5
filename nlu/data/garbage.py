"""Garbage collection while many rows are read."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def what_exists_is_not_collected() -> Iterator[None]:
    """Leave the objects that exist now out of garbage collections.

    Rows make objects by the million, and going over all modules of torch at every collection among them would take a
    third of the time.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
