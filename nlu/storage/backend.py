"""The contract of a backend, which reads and writes places, and the backend of this machine's disks.

`nlu.storage.objects` has the backend of buckets and `backend_of`, which chooses one for a place; `nlu.storage.web` has
the backend of http(s).
"""

import os
import secrets
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.files import replacing
from nlu.storage.places import Place

COPY_BYTES = 1 << 20
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


@dataclass(frozen=True)
class FileInfo:
    """What is known of a file or folder without reading it.

    `size` is in bytes, None if ranges of the file cannot be read. `etag` is the service's mark of the content, in its
    original case. `modified_s` is in seconds since 1970, UTC.
    """

    is_folder: bool
    size: int | None = None
    etag: str | None = None
    modified_s: float | None = None


class Backend(ABC):
    """One disk, bucket or web server, for reading."""

    @abstractmethod
    def stat(self, place: Place) -> FileInfo | None:
        """Return what is known of a place, None if nothing exists there."""

    @abstractmethod
    def files(self, place: Place) -> dict[str, FileInfo]:
        """Return all files below a folder by their path relative to it, sorted."""

    @abstractmethod
    def children(self, place: Place) -> dict[str, FileInfo]:
        """Return the files and folders directly in a folder, by name."""

    @abstractmethod
    def read(self, place: Place, start: int, stop: int, info: FileInfo) -> bytes:
        """Return the bytes `start:stop` of a file. Raises an error if its version differs from that of `info`."""

    def read_whole(self, place: Place, path: Path) -> None:
        """Write a file whose size is None, which is not readable in ranges, to a local path."""
        raise NotImplementedError


class WritableBackend(Backend):
    """A backend that can also be written to."""

    @abstractmethod
    def put(self, path: Path, place: Place, advance: Advance) -> None:
        """Write a local file to a place, atomically."""

    @abstractmethod
    def remove(self, place: Place) -> None:
        """Remove a file if it exists."""

    @abstractmethod
    def make_folder(self, place: Place) -> bool:
        """Create a folder; returns False if this backend does not have folders."""

    @abstractmethod
    def try_writing(self, place: Place) -> None:
        """Write a file in a folder and remove it again. Raises UserError if that is impossible."""


class Disk(WritableBackend):
    """The file systems of this machine."""

    def stat(self, place: Place) -> FileInfo | None:
        try:
            status = os.stat(place.path)
        # The second error says that a part of the path is a file.
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_folder = os.path.isdir(place.path)
        return FileInfo(is_folder, None if is_folder else status.st_size, None, status.st_mtime)

    def files(self, place: Place) -> dict[str, FileInfo]:
        root = Path(place.path)
        found = {}
        for folder, _, names in os.walk(root):
            for path in (Path(folder, name) for name in names):
                # Broken links, sockets and pipes are left out: they lack content to copy, and opening a pipe would
                # wait forever.
                if path.is_file():
                    status = path.stat()
                    found[path.relative_to(root).as_posix()] = FileInfo(False, status.st_size, None, status.st_mtime)
        return dict(sorted(found.items()))

    def children(self, place: Place) -> dict[str, FileInfo]:
        return {name: info for name in sorted(os.listdir(place.path)) if (info := self.stat(place.within(name)))}

    def read(self, place: Place, start: int, stop: int, info: FileInfo) -> bytes:
        with open(place.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def put(self, path: Path, place: Place, advance: Advance) -> None:
        with open(path, "rb") as source, replacing(place.path) as target:
            while chunk := source.read(COPY_BYTES):
                target.write(chunk)
                advance(len(chunk))
        # The copy keeps the time of modification, by which the next transfer recognizes it
        # (`nlu.storage.transfer.is_same`). A kill before this line costs only one more copy.
        shutil.copystat(path, place.path)

    def remove(self, place: Place) -> None:
        Path(place.path).unlink(missing_ok=True)

    def make_folder(self, place: Place) -> bool:
        Path(place.path).mkdir(parents=True, exist_ok=True)
        return True

    def try_writing(self, place: Place) -> None:
        folder = Path(place.path)
        if folder.is_file():
            folder = folder.parent
        # Folders that are missing are not created here: the command may still be refused.
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not there.is_dir():
            raise UserError(f"{place.shown} cannot be written: {there} is a file; name another place")
        probe = there / f".{secrets.token_hex(8)}.probe"
        try:
            probe.touch()
        except OSError as error:
            raise UserError(f"{place.shown} cannot be written: {error.strerror}; name another place") from error
        probe.unlink()
