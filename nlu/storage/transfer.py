"""Copies, moves, synchronizes, removes and reads files on any two backends, file by file.

A file is skipped if the same one is at the target already, so an interrupted transfer continues where it stopped.
Within a folder the file COMPLETE, which tells readers that a folder is whole, is written last and removed first.
"""

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Advance, FileInfo, download_progress, no_progress
from nlu.storage.bucket import Bucket, Upload
from nlu.storage.cache import cache_dir, staging_folder, text_digest
from nlu.storage.locks import hold_folder
from nlu.storage.objects import BucketBackend, backend_of, writable_backend_of
from nlu.storage.parts import PART_BYTES, WHOLE_BYTES, fetch_into, idle_uploads, is_content
from nlu.storage.places import READ_ONLY, Place, refuse_root
from nlu.storage.settle import MARKER, remove

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
    sha256: str | None = None
    """required of the content, None if unknown; it is checked only for a local target"""


@dataclass(frozen=True)
class TransferPlan:
    """What a transfer does. The files of `same` exist at the target; `extra` exist only there."""

    copied: list[Item]
    same: list[Item]
    extra: list[Place]

    @property
    def size(self) -> int | None:
        """Bytes of all files to copy, None if a web server does not give a size."""
        return _total(self.copied)


def _total(items: Iterable[Item]) -> int | None:
    sizes = [item.info.size for item in items]
    return None if None in sizes else sum(size or 0 for size in sizes)


def existing(place: Place) -> FileInfo:
    """Return what is known of a place. Raises DataError if nothing exists there."""
    info = backend_of(place).stat(place)
    if info is None:
        raise DataError(f"{place.shown} does not exist; correct the path")
    return info


def plan_copy(source: Place, target: Place, *, recursive: bool, extra: bool = False) -> TransferPlan:
    """Plan a copy. In an existing folder, a file keeps its own name, and so do the files of a folder.

    With `extra`, files of the target folder that the source does not have are listed. Raises DataError if the source
    does not exist, UserError for a folder without `recursive` and for a target that is a file instead of a folder.
    """
    info = existing(source)
    backend = backend_of(target)
    there = backend.stat(target)
    if not info.is_folder:
        if target.names_folder or there and there.is_folder:
            target = target.within(source.name)
            there = backend.stat(target)
            if there and there.is_folder:
                raise UserError(f"{target.shown} is a folder where a file is to be written; name another target")
        return _compared([Item(source, info, target, there)], [])
    if not recursive:
        raise UserError(f"{source.shown} is a folder; give --recursive to copy what is in it")
    # As cp does: a target with a slash at its end is the folder into which the source is put.
    if target.names_folder and not extra and not source.is_root:
        target = target.within(source.name)
        there = backend.stat(target)
    if there and not there.is_folder:
        raise UserError(f"{target.shown} is a file, but a folder is copied; name another target")
    refuse_root(target, "overwritten by a folder")
    if (source.scheme, source.bucket) == (target.scheme, target.bucket):
        if f"{target.path}/".startswith(f"{source.path}/"):
            raise UserError(f"{target.shown} is {source.shown}, or in it; name a target elsewhere")
    present = backend.files(target) if there else {}
    files = backend_of(source).files(source)
    items = [Item(source.within(name), file, target.within(name), present.get(name)) for name, file in files.items()]
    return _compared(items, [target.within(name) for name in present if extra and name not in files])


def _compared(items: list[Item], extra: list[Place]) -> TransferPlan:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        same = list(pool.map(is_same, items))
    return TransferPlan(
        copied=sorted((item for item, is_there in zip(items, same, strict=True) if not is_there), key=_marker_last),
        same=[item for item, is_there in zip(items, same, strict=True) if is_there],
        extra=extra,
    )


def _marker_last(item: Item) -> bool:
    return item.target.name == MARKER


def is_same(item: Item) -> bool:
    """Return whether the file at the target is the one that would be copied there.

    The contents are compared if a backend gives a digest, else size and time, as rsync (local files) and the AWS
    command line (objects) do.
    """
    source, there = item.info, item.there
    if there is None or source.size is None or source.size != there.size:
        return False
    if source.etag and there.etag and source.etag.lower() == there.etag.lower():
        return True
    # An etag of one side is compared with the content of the local file on the other side.
    for etag, other in ((there.etag, item.source), (source.etag, item.target)):
        if etag and other.is_local and (answer := is_content(Path(other.path), etag)) is not None:
            return answer
    if source.modified_s is None or there.modified_s is None:
        return False
    if item.target.is_local:
        return abs(source.modified_s - there.modified_s) < SAME_TIME_S
    return not (source.etag and there.etag) and there.modified_s >= source.modified_s


def run_copies(items: list[Item], title: str) -> None:
    """Copy files, several small ones at once. If one fails, finished ones stay."""
    with download_progress(title, _total(items)) as advance:
        # The mark of a folder comes last, once all other files have arrived.
        for is_marker in (False, True):
            batch = [item for item in items if _marker_last(item) == is_marker]
            # A large file has its own threads for its parts, so large files follow one another.
            small = [item for item in batch if item.info.size is not None and item.info.size < WHOLE_BYTES]
            in_threads(lambda item: copy_file(item, advance), small)
            for item in batch:
                if item not in small:
                    copy_file(item, advance)


def copy_file(item: Item, advance: Advance = no_progress) -> None:
    """Copy one file. Raises DataError if a backend fails, UserError if a disk refuses."""
    source, target = item.source, item.target
    with disk_errors(target):
        reader, writer = backend_of(source), writable_backend_of(target)
        if source.is_local:
            writer.put(Path(source.path), target, advance)
        elif target.is_local:
            path = Path(target.path)
            digest = fetch_into(reader, source, item.info, path, advance, hashed=item.sha256 is not None)
            if item.sha256 is not None and digest != item.sha256:
                # The next command would take it for a finished copy.
                path.unlink()
                raise DataError(
                    f"{source.shown} is damaged: its sha256 is {digest}, not {item.sha256}; restore that object"
                )
        # Within one service the data do not pass through this machine.
        elif (
            source.scheme == target.scheme
            and isinstance(writer, BucketBackend)
            and writer.bucket.can_copy(source.bucket, item.info.size)
        ):
            writer.bucket.copy(source.bucket, source.path, target.path)
            advance(item.info.size or 0)
        else:
            # By a file in the cache, so that an interrupted copy does not fetch its first half again.
            folder = cache_dir() / "transfers" / text_digest(source.shown)
            # Another copy of the same source would otherwise lose its file when this one removes the folder.
            with hold_folder(folder, ".lock", wait_s=math.inf, optional=True, what=source.shown):
                fetch_into(reader, source, item.info, folder / source.name, no_progress)
                writer.put(folder / source.name, target, advance)
                shutil.rmtree(folder, ignore_errors=True)


def plan_move(source: Place, target: Place, *, recursive: bool) -> TransferPlan:
    """Plan a move, as `plan_copy` does. Raises UserError also if the source is read-only or is the target."""
    refuse_root(source, "moved")
    if source.scheme in READ_ONLY:
        raise UserError(f"{source.shown} is read-only; copy it instead")
    plan = plan_copy(source, target, recursive=recursive)
    for item in (*plan.copied, *plan.same):
        if _is_itself(item):
            # The file would count as its own copy, and then be removed.
            raise UserError(f"{item.target.shown} is {item.source.shown} itself; name another target")
    return plan


def _is_itself(item: Item) -> bool:
    source, target = item.source, item.target
    if source.is_local and target.is_local:
        return os.path.exists(target.path) and os.path.samefile(source.path, target.path)
    return (source.scheme, source.bucket, source.path) == (target.scheme, target.bucket, target.path)


def run_move(source: Place, plan: TransferPlan, title: str) -> None:
    """Copy all files, verify that each one exists, and only then remove the source. Raises what `copy_file` raises."""

    def verify(item: Item) -> None:
        there = backend_of(item.target).stat(item.target)
        if there is None or there.size != item.info.size:
            raise DataError(
                f"{item.target.shown} is not as it was written; nothing was removed from {item.source.shown}"
            )

    run_copies(plan.copied, title)
    # Files that were there before are verified too, since their source is removed.
    items = [*plan.copied, *plan.same]
    in_threads(verify, items)
    remove_all(source, [item.source for item in items])


def plan_remove(place: Place, *, recursive: bool) -> list[Place]:
    """Return the files to remove. Raises UserError for a whole bucket or disk, and for a folder without `recursive`."""
    refuse_root(place, "removed")
    if place.scheme in READ_ONLY:
        raise UserError(f"{place.shown} is read-only; nothing there is removed")
    if place.is_local and os.path.islink(place.path):
        return [place]
    if not existing(place).is_folder:
        return [place]
    if not recursive:
        raise UserError(f"{place.shown} is a folder; give --recursive to remove all that is in it")
    # The mark is removed first, so that no reader takes the rest of a folder for a whole one.
    names = sorted(backend_of(place).files(place), key=lambda name: Path(name).name != MARKER)
    return [place.within(name) for name in names]


def remove_all(place: Place, files: list[Place]) -> None:
    """Remove files of a place, marks first, and then the empty folders that are left of it."""
    backend = writable_backend_of(place)
    with disk_errors(place):
        for is_marker in (True, False):
            in_threads(backend.remove, [file for file in files if (file.name == MARKER) == is_marker])
        if isinstance(backend, BucketBackend):
            backend.remove_folder_marks(place)
        else:
            for folder, _, _ in os.walk(place.path, topdown=False):
                if not os.listdir(folder):
                    os.rmdir(folder)


def run_remove(place: Place, files: list[Place]) -> None:
    """Remove the files that `plan_remove` returned; on a disk, the folder with everything in it."""
    if not place.is_local:
        remove_all(place, files)
        return
    with disk_errors(place):
        remove(Path(place.path))


def idle_uploads_of(place: Place) -> tuple[Bucket, list[Upload]]:
    """Return the abandoned uploads to a place or below it, and their bucket. Raises UserError for a local place."""
    refuse_root(place, "searched for unfinished uploads")
    backend = writable_backend_of(place)
    if not isinstance(backend, BucketBackend):
        raise UserError(f"{place.shown} is on a disk, but --uploads is for s3:// and oss://; leave it out")
    below = f"{place.path}/"
    found = [one for one in idle_uploads(backend.bucket, place.path) if f"{one.key}/".startswith(below)]
    return backend.bucket, found


def chunks_of(place: Place) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises UserError for a folder, DataError if it does not exist."""
    info = existing(place)
    if info.is_folder:
        raise UserError(f"{place.shown} is a folder; name a file")
    backend = backend_of(place)
    with disk_errors(place):
        if info.size is None:
            with staging_folder() as folder:
                backend.read_whole(place, folder / "whole")
                with open(folder / "whole", "rb") as file:
                    yield from iter(lambda: file.read(PART_BYTES), b"")
        else:
            for start in range(0, info.size, PART_BYTES):
                yield backend.read(place, start, min(start + PART_BYTES, info.size), info)


def md5_of(place: Place) -> str:
    """Return the MD5 of a file in hex, computed from its bytes."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in chunks_of(place):
        digest.update(chunk)
    return digest.hexdigest()


def size_of(place: Place) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    info = existing(place)
    if info.is_folder:
        return sum(file.size or 0 for file in backend_of(place).files(place).values())
    return sum(map(len, chunks_of(place))) if info.size is None else info.size


def in_threads(action: Callable[[T], None], values: Iterable[T]) -> None:
    """Call `action` with each value, several at once. Raises the first error."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(action, values):
            pass


@contextmanager
def disk_errors(place: Place) -> Iterator[None]:
    """Raise UserError, with a remedy, for an OSError of the disk and for a missing bucket."""
    try:
        yield
    except FileNotFoundError as error:
        if place.is_local:
            raise UserError(f"{error.filename or place.shown} does not exist; correct the path") from error
        raise UserError(f"{place.scheme}://{place.bucket} does not exist; create it first") from error
    except UserError:
        raise
    except OSError as error:
        what = error.filename or place.shown
        raise UserError(
            f"{what}: {error.strerror or error}; correct that or name another place, and try again"
        ) from error
