"""A progress bar for long downloads, shown to a person at a terminal and to nobody else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN_FROM_MB = 5


@contextmanager
def download_progress(name: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with each number of bytes received; size in bytes, None where it is unknown."""
    if size is None or size <= SHOWN_FROM_MB * 1_000_000 or not sys.stderr.isatty():
        yield lambda received: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=size)
        yield lambda received: progress.advance(task, received)
