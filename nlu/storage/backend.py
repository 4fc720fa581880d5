"""The contract of a backend, which reads and writes places, and the backend of the disks of this machine.

`nlu.storage.objects` implements it for buckets, `nlu.storage.web` for http(s); `backend_of` there chooses one.
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

Advance = Callable[[int], None]
"""Is told how many bytes more are done."""


@dataclass(frozen=True)
class Found:
    """What lies at a place.

    `size` in bytes, None where ranges of it cannot be read. `etag`: what the store says of the content, in its
    own case. `modified_s`: seconds since 1970, UTC.
    """

    is_folder: bool
    size: int | None = None
    etag: str | None = None
    modified_s: float | None = None


class FileStore(ABC):
    """One disk, bucket or server, as it is read; places are all of it."""

    @abstractmethod
    def look(self, place: Place) -> Found | None:
        """What lies there; None where nothing does."""

    @abstractmethod
    def files(self, place: Place) -> dict[str, Found]:
        """All files below a folder, by the path relative to it, in order."""

    @abstractmethod
    def children(self, place: Place) -> dict[str, Found]:
        """What lies directly in a folder, by name."""

    @abstractmethod
    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        """A range of the file that was found."""

    @abstractmethod
    def read_whole(self, place: Place, path: Path) -> None:
        """Write a file, also one of which ranges cannot be read, to a local path."""


class WritableStore(FileStore):
    """One that is written to as well."""

    @abstractmethod
    def put(self, path: Path, place: Place, advance: Advance) -> None:
        """Write a local file there."""

    @abstractmethod
    def remove(self, place: Place) -> None:
        """Remove a file."""

    @abstractmethod
    def make_folder(self, place: Place) -> bool:
        """Make a folder; False where the store has none."""

    @abstractmethod
    def try_writing(self, place: Place) -> None:
        """Write a file in a folder and remove it; raises UserError where that cannot be done."""


COPY_BYTES = 1 << 20


class Disk(WritableStore):
    """The file systems of this machine."""

    def look(self, place: Place) -> Found | None:
        try:
            status = os.stat(place.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_folder = os.path.isdir(place.path)
        return Found(is_folder, None if is_folder else status.st_size, None, status.st_mtime)

    def files(self, place: Place) -> dict[str, Found]:
        root = Path(place.path)
        found = {}
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in names:
                path = Path(folder, name)
                if path.is_file():
                    status = path.stat()
                    found[path.relative_to(root).as_posix()] = Found(False, status.st_size, None, status.st_mtime)
        return dict(sorted(found.items()))

    def children(self, place: Place) -> dict[str, Found]:
        return {name: found for name in sorted(os.listdir(place.path)) if (found := self.look(place.within(name)))}

    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        with open(place.path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def read_whole(self, place: Place, path: Path) -> None:
        shutil.copyfile(place.path, path)

    def put(self, path: Path, place: Place, advance: Advance) -> None:
        with open(path, "rb") as source, replacing(place.path) as target:
            while chunk := source.read(COPY_BYTES):
                target.write(chunk)
                advance(len(chunk))
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
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not there.is_dir():
            raise UserError(f"{place.shown} cannot be written: {there} is a file; name another place")
        probe = there / f".{secrets.token_hex(8)}.probe"
        try:
            probe.touch()
        except OSError as error:
            raise UserError(f"{place.shown} cannot be written: {error.strerror}; name another place") from error
        probe.unlink()


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
