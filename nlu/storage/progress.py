"""Progress bars of transfers."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN_FROM_MB = 5
Advance = Callable[[int], None]
"""called with each number of bytes that were transferred"""


def no_progress(size: int) -> None:
    """An `Advance` that shows nothing."""


@contextmanager
def download_progress(name: str, size: int | None) -> Iterator[Advance]:
    """Give a function to call with each number of bytes received, which moves a progress bar on a terminal.

    `size` is the total in bytes, None if it is unknown. Small transfers, and those without a terminal, show no bar.
    """
    if size is None or size <= SHOWN_FROM_MB * 1_000_000 or not sys.stderr.isatty():
        yield no_progress
        return
    # Imported late: rich is slow to import, and few transfers show a bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=size)
        yield lambda received: progress.advance(task, received)
