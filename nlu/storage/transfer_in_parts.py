"""Large files in parts, in both directions, each complete or not at all, with a progress bar."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from nlu.storage import access
from nlu.storage.access import Asking, FileInfo
from nlu.storage.files import replacing
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import Place
from nlu.storage.refusals import Changed, asked

SHOWN_FROM_MB = 5
Advance = Callable[[int], None]
"""called with each number of bytes that were transferred"""

PART_BYTES = 16 << 20
THREADS = 4


class Told:
    """What the drivers of fsspec call as an upload goes on."""

    def __init__(self, advance: Advance):
        self._advance, self._sent = advance, 0

    def set_size(self, size: int) -> None:
        """Do nothing: the bar knows the size."""

    def relative_update(self, more: int) -> None:
        self._sent += more
        self._advance(more)

    def absolute_update(self, sent: int) -> None:
        self.relative_update(sent - self._sent)


def put(path: Path, place: Place, advance: Advance, **asking: Unpack[Asking]) -> None:
    """Write a local file of any size to a bucket."""
    filesystem, target = filesystem_of(place)
    # ossfs has parts of its own.
    options: dict[str, Any] = {"chunksize": PART_BYTES, "max_concurrency": THREADS} if place.scheme == "s3" else {}

    def verb() -> None:
        filesystem.put_file(str(path), target, callback=Told(advance), **options)

    asked(place, "written", verb, **asking)


def fetch_into(place: Place, info: FileInfo, target: Path, advance: Advance) -> None:
    """Copy the file that `info` describes to a local path. Raises Changed if the source changes meanwhile."""
    with replacing(target) as file:
        if info.size is None:
            filesystem, path = filesystem_of(place)
            asked(place, "read", lambda: filesystem.get_file(path, file.name))
        else:
            for content in _parts(place, info, info.size):
                file.write(content)
                advance(len(content))
        # Before the rename: a file under its final name has its final time.
        file.flush()
        if info.modified_s is not None:
            os.utime(file.fileno(), (info.modified_s, info.modified_s))


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


def _parts(place: Place, info: FileInfo, size: int) -> Iterator[bytes]:
    def read(start: int) -> bytes:
        return access.read(place, start, min(start + PART_BYTES, size), info)

    with ThreadPoolExecutor(THREADS) as pool:
        # At most this many parts are in memory.
        for first in range(0, size, THREADS * PART_BYTES):
            try:
                yield from pool.map(read, range(first, min(first + THREADS * PART_BYTES, size), PART_BYTES))
            except FileNotFoundError as error:
                raise Changed(f"{place.shown} was removed while it was read; try again") from error
