"""Copies, synchronizes, removes and reads files at any two places, file by file.

A file is skipped if the same one is at the target already, so an interrupted transfer continues where it stopped.
Within a folder the file COMPLETE, which tells readers that a folder is whole, is written last and removed first.
"""

import filecmp
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nlu.config.errors import DataError, UserError
from nlu.storage import access
from nlu.storage.access import FileInfo, files, stat
from nlu.storage.cache import staging_folder
from nlu.storage.locations import Place, refuse_root
from nlu.storage.settle import MARKER, remove
from nlu.storage.transfer_in_parts import (
    PART_BYTES,
    WHOLE_BYTES,
    Advance,
    download_progress,
    fetch_into,
    is_content,
    no_progress,
    put,
)

AT_ONCE = 8
"""small files in flight"""
# A time in seconds is a float here, and loses the last digits of a disk's nanoseconds.
SAME_TIME_S = 1e-5

T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """One file to copy; `there` is what exists at the target now."""

    source: Place
    info: FileInfo
    target: Place
    there: FileInfo | None


@dataclass(frozen=True)
class TransferPlan:
    """What a transfer does. The files of `same` exist at the target; `extra` exist only there."""

    copied: list[Item]
    same: list[Item]
    extra: list[Place]

    @property
    def size(self) -> int | None:
        """Bytes of all files to copy, None if a web server does not give a size."""
        sizes = [item.info.size for item in self.copied]
        return None if None in sizes else sum(size or 0 for size in sizes)


def existing(place: Place) -> FileInfo:
    """Return what is known of a place. Raises DataError if nothing exists there."""
    info = stat(place)
    if info is None:
        raise DataError(f"{place.shown} does not exist; correct the path")
    return info


def plan_copy(source: Place, target: Place, *, recursive: bool, extra: bool = False) -> TransferPlan:
    """Plan a copy. In an existing folder, a file keeps its own name, and so do the files of a folder.

    With `extra`, files of the target folder that the source does not have are listed. Raises DataError if the source
    does not exist, UserError for a folder without `recursive` and for a target that is a file instead of a folder.
    """
    info, there = existing(source), stat(target)
    if not info.is_folder:
        if target.names_folder or there and there.is_folder:
            target = target.within(source.name)
            there = stat(target)
            if there and there.is_folder:
                raise UserError(f"{target.shown} is a folder where a file is to be written; name another target")
        return _compared([Item(source, info, target, there)], [])
    if not recursive:
        raise UserError(f"{source.shown} is a folder; give --recursive to copy what is in it")
    # As cp does: a target with a slash at its end is the folder into which the source is put.
    if target.names_folder and not extra and not source.is_root:
        target = target.within(source.name)
        there = stat(target)
    if there and not there.is_folder:
        raise UserError(f"{target.shown} is a file, but a folder is copied; name another target")
    refuse_root(target, "overwritten by a folder")
    is_one_store = (source.scheme, source.bucket) == (target.scheme, target.bucket)
    if is_one_store and f"{target.path}/".startswith(f"{source.path}/"):
        raise UserError(f"{target.shown} is {source.shown}, or in it; name a target elsewhere")
    if is_one_store and extra and f"{source.path}/".startswith(f"{target.path}/"):
        raise UserError(f"{source.shown} is in {target.shown}, so --delete would remove it; name a target elsewhere")
    found, present = files(source), files(target) if there else {}
    items = [Item(source.within(name), file, target.within(name), present.get(name)) for name, file in found.items()]
    return _compared(items, [target.within(name) for name in present if extra and name not in found])


def _compared(items: list[Item], extra: list[Place]) -> TransferPlan:
    same = dict(zip(items, in_threads(is_same, items), strict=True))
    copied = sorted((item for item in items if not same[item]), key=lambda item: _is_mark(item.target))
    return TransferPlan(copied, [item for item in items if same[item]], extra)


def _is_mark(place: Place) -> bool:
    return place.name == MARKER


def is_same(item: Item) -> bool:
    """Return whether the file at the target is the one that would be copied there.

    The contents are compared on a disk and if a service gives a digest, else size and time, as the AWS command line
    does.
    """
    source, there = item.info, item.there
    if there is None or source.size is None or source.size != there.size:
        return False
    if source.etag and there.etag and source.etag.lower() == there.etag.lower():
        return True
    for etag, other in ((there.etag, item.source), (source.etag, item.target)):
        if etag and other.is_local and (answer := is_content(Path(other.path), etag)) is not None:
            return answer
    if source.modified_s is None or there.modified_s is None:
        return False
    if item.source.is_local and item.target.is_local:
        # A clock of files ticks too slowly to tell two versions apart, and disks are quick to read.
        return filecmp.cmp(item.source.path, item.target.path, shallow=False)
    if item.target.is_local:
        return abs(source.modified_s - there.modified_s) < SAME_TIME_S
    # A service has whole seconds, so within the second of the upload the file may have been written again.
    return not (source.etag and there.etag) and there.modified_s > source.modified_s


def run_copies(items: list[Item], title: str) -> None:
    """Copy files, several small ones at once. If one fails, finished ones stay."""
    with download_progress(title, TransferPlan(items, [], []).size) as advance:
        # The mark of a folder comes last, once all other files have arrived.
        for is_mark in (False, True):
            batch = [item for item in items if _is_mark(item.target) == is_mark]
            # A large file has its own threads for its parts, so large files follow one another.
            small = [item for item in batch if item.info.size is not None and item.info.size < WHOLE_BYTES]
            in_threads(lambda item: copy_file(item, advance), small)
            for item in batch:
                if item not in small:
                    copy_file(item, advance)


def copy_file(item: Item, advance: Advance = no_progress) -> None:
    """Copy one file. Raises DataError if a service fails, UserError if a disk refuses."""
    source, target, size = item.source, item.target, item.info.size
    # ossfs takes an object of another bucket through this machine.
    is_copied_there = source.scheme == target.scheme and (source.scheme == "s3" or source.bucket == target.bucket)
    with disk_errors(target):
        if target.is_local:
            fetch_into(source, item.info, Path(target.path), advance)
        elif source.is_local:
            put(Path(source.path), target, advance)
        elif is_copied_there:
            access.copy(source, target)
            advance(size or 0)
        else:
            with staging_folder() as folder:
                fetch_into(source, item.info, folder / source.name, no_progress)
                put(folder / source.name, target, advance)


def plan_remove(place: Place, *, recursive: bool) -> list[Place]:
    """Return the files to remove. Raises UserError for a whole bucket or disk, and for a folder without `recursive`."""
    refuse_root(place, "removed")
    if place.is_local and os.path.islink(place.path) or not existing(place).is_folder:
        return [place]
    if not recursive:
        raise UserError(f"{place.shown} is a folder; give --recursive to remove all that is in it")
    if place.is_local and Path.cwd().is_relative_to(place.path):
        raise UserError(f"{place.shown} is the working folder or holds it; remove it from another folder")
    return [place.within(name) for name in files(place)]


def remove_all(place: Place, gone: list[Place]) -> None:
    """Remove files of a place, and then the empty folders that are left of it on a disk."""
    with disk_errors(place):
        # The mark is removed first, so that no reader takes the rest of a folder for a whole one.
        for is_mark in (True, False):
            in_threads(access.delete, [file for file in gone if _is_mark(file) == is_mark])
        for folder, _, _ in os.walk(place.path, topdown=False) if place.is_local else ():
            if not os.listdir(folder):
                os.rmdir(folder)


def run_remove(place: Place, gone: list[Place]) -> None:
    """Remove the files that `plan_remove` returned; on a disk, the folder with everything in it."""
    if not place.is_local:
        remove_all(place, gone)
        return
    with disk_errors(place):
        remove(Path(place.path))


def chunks_of(place: Place) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises UserError for a folder, DataError if it does not exist."""
    info = existing(place)
    if info.is_folder:
        raise UserError(f"{place.shown} is a folder; name a file")
    with disk_errors(place):
        if info.size is None:
            yield access.read_all(place)
        for start in range(0, info.size or 0, PART_BYTES):
            yield access.read(place, start, min(start + PART_BYTES, info.size or 0), info)


def in_threads(action: Callable[[T], object], values: Iterable[T]) -> list[object]:
    """Return the results of `action` for each value, several at once. Raises the first error."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(action, values))


@contextmanager
def disk_errors(place: Place) -> Iterator[None]:
    """Raise UserError, with a remedy, for an OSError of the disk and for a bucket that is gone."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UserError):
            raise
        what = error.filename or place.shown
        said = error.strerror or ("does not exist" if isinstance(error, FileNotFoundError) else error)
        raise UserError(f"{what}: {said}; correct that or name another place, and try again") from error
