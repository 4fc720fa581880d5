"""Copies, moves, synchronizes, removes and reads files on any two backends, file by file.

A file is skipped if the same one is at the target already, so an interrupted transfer continues where it stopped.
Within a folder the file COMPLETE, which tells readers that a folder is whole, is written last.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Advance, FileStore, Found, WritableStore, download_progress
from nlu.storage.bucket import Bucket, Upload
from nlu.storage.cache import cache_dir, staging_folder, text_digest
from nlu.storage.objects import Objects, store_of, writable_store_of
from nlu.storage.parts import PART_BYTES, WHOLE_BYTES, fetch_into, idle_uploads, is_content
from nlu.storage.places import READ_ONLY, Place, parse_place, refuse_root
from nlu.storage.resources import fetch
from nlu.storage.settle import MARKER, remove

AT_ONCE = 8
"""Small files on their way at once."""
SAME_TIME_S = 1e-5

T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """One file and where it is to lie; `there` is what lies there now."""

    source: Place
    found: Found
    target: Place
    there: Found | None
    sha256: str | None = None
    """what its content must have; None where that is not known. Of what gets to a local place alone it is checked."""


@dataclass(frozen=True)
class TransferPlan:
    """What a transfer does. `same` lie there already; `extra` lie there and not at the source."""

    copied: list[Item]
    same: list[Item]
    extra: list[Place]

    @property
    def size(self) -> int | None:
        """Bytes of all that is copied; None where a web server does not say."""
        sizes = [item.found.size for item in self.copied]
        return None if None in sizes else sum(size or 0 for size in sizes)


def readable(text: str, what: str = "source") -> Place:
    """The place to read; a pinned file, a model of a hub or a member of a package is fetched into the cache first."""
    place = parse_place(text, what)
    if place.scheme in ("hf", "pypi") or "#sha256=" in text:
        return parse_place(str(fetch(text, what=what)), what)
    return place


def found_at(place: Place) -> Found:
    """What lies there. Raises DataError where nothing does."""
    found = store_of(place).look(place)
    if found is None:
        raise DataError(f"{place.shown} does not exist; correct the path")
    return found


def plan_copy(source: Place, target: Place, *, recursive: bool, extra: bool = False) -> TransferPlan:
    """What is to be copied; a file into an existing folder gets its own name there, the files of a folder theirs.

    With `extra`, files of the target folder are listed that the source has not. Raises DataError for what does not
    exist, UserError for a folder without `recursive` and for a target that is a file where a folder is to be.
    """
    found = found_at(source)
    there = store_of(target).look(target)
    if not found.is_folder:
        if target.names_folder or there and there.is_folder:
            target = target.within(source.name)
            there = store_of(target).look(target)
            if there and there.is_folder:
                raise UserError(f"{target.shown} is a folder where a file is to be written; name another target")
        return _sorted([Item(source, found, target, there)], [])
    if not recursive:
        raise UserError(f"{source.shown} is a folder; give --recursive to copy what is in it")
    if target.names_folder and not extra and not source.is_root:
        target = target.within(source.name)
        there = store_of(target).look(target)
    if there and not there.is_folder:
        raise UserError(f"{target.shown} is a file, but a folder is copied; name another target")
    refuse_root(target, "overwritten by a folder")
    _refuse_nested(source, target)
    present = store_of(target).files(target) if there else {}
    files = store_of(source).files(source)
    items = [Item(source.within(name), file, target.within(name), present.get(name)) for name, file in files.items()]
    return _sorted(items, [target.within(name) for name in present if extra and name not in files])


def _refuse_nested(source: Place, target: Place) -> None:
    if (source.scheme, source.bucket) == (target.scheme, target.bucket):
        one, other = f"{source.path}/", f"{target.path}/"
        if one == other or other.startswith(one):
            raise UserError(f"{target.shown} lies in {source.shown}, or is it; name a target elsewhere")


def _sorted(items: list[Item], extra: list[Place]) -> TransferPlan:
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
    """Whether what lies at the target is what would be copied there.

    Told by the content where the stores give a digest of it, else by size and time as rsync (local files) and the
    command of AWS (objects) do.
    """
    source, there = item.found, item.there
    if there is None or source.size is None or source.size != there.size:
        return False
    if source.etag and there.etag and source.etag.lower() == there.etag.lower():
        return True
    for etag, other in ((there.etag, item.source), (source.etag, item.target)):
        if etag and other.is_local and (answer := is_content(Path(other.path), etag)) is not None:
            return answer
    if source.modified_s is None or there.modified_s is None:
        return False
    if item.target.is_local:
        return abs(source.modified_s - there.modified_s) < SAME_TIME_S
    return not (source.etag and there.etag) and there.modified_s >= source.modified_s


def run_copies(items: list[Item], title: str) -> None:
    """Copy all of them, small files several at once. What is done stays done where one fails."""
    sizes = [item.found.size for item in items]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with download_progress(title, total) as advance:
        for is_marker in (False, True):
            batch = [item for item in items if _marker_last(item) == is_marker]
            small = [item for item in batch if item.found.size is not None and item.found.size < WHOLE_BYTES]
            in_threads(lambda item: copy_file(item, advance), small)
            for item in batch:
                if item not in small:
                    copy_file(item, advance)


def copy_file(item: Item, advance: Advance = lambda count: None) -> None:
    """Copy one file. Raises DataError where a store does not do its part, UserError for what a disk refuses."""
    with disk_errors(item.target):
        source, target = store_of(item.source), writable_store_of(item.target)
        if item.target.is_local:
            if item.source.is_local:
                target.put(Path(item.source.path), item.target, advance)
            else:
                _receive(source, item, advance)
        elif item.source.is_local:
            target.put(Path(item.source.path), item.target, advance)
        elif item.source.scheme == item.target.scheme and isinstance(target, Objects):
            target.bucket.copy(item.source.bucket, item.source.path, item.target.path)
            advance(item.found.size or 0)
        else:
            _through_disk(source, target, item, advance)


def _receive(source: FileStore, item: Item, advance: Advance) -> None:
    path = Path(item.target.path)
    digest = fetch_into(source, item.source, item.found, path, advance, hashed=item.sha256 is not None)
    if item.sha256 is not None and digest != item.sha256:
        path.unlink()
        raise DataError(
            f"{item.source.shown} is damaged: its sha256 is {digest}, not {item.sha256}; restore that object"
        )


def _through_disk(source: FileStore, target: WritableStore, item: Item, advance: Advance) -> None:
    """Between two stores that know nothing of each other; half of a large file is not fetched twice."""
    path = cache_dir() / "transfers" / text_digest(item.source.shown) / item.source.name
    fetch_into(source, item.source, item.found, path, lambda count: None)
    target.put(path, item.target, advance)
    shutil.rmtree(path.parent, ignore_errors=True)


def plan_move(source: Place, target: Place, *, recursive: bool) -> TransferPlan:
    """What `plan_copy` says, of something that may go from where it is."""
    refuse_root(source, "moved")
    if source.scheme in READ_ONLY:
        raise UserError(f"{source.shown} can be read alone; copy it instead")
    plan = plan_copy(source, target, recursive=recursive)
    for item in (*plan.copied, *plan.same):
        if _is_itself(item):
            # What lies there already would pass for a copy, and then be removed.
            raise UserError(f"{item.target.shown} is {item.source.shown} itself; name another target")
    return plan


def _is_itself(item: Item) -> bool:
    source, target = item.source, item.target
    if source.is_local and target.is_local:
        return os.path.exists(target.path) and os.path.samefile(source.path, target.path)
    return (source.scheme, source.bucket, source.path) == (target.scheme, target.bucket, target.path)


def run_move(source: Place, plan: TransferPlan, title: str) -> None:
    """Copy, see that all of it is there, and only then remove the source. Raises what `copy_file` raises."""
    run_copies(plan.copied, title)
    items = [*plan.copied, *plan.same]
    in_threads(_confirm, items)
    remove_all(source, [item.source for item in items])


def _confirm(item: Item) -> None:
    there = store_of(item.target).look(item.target)
    if there is None or there.size != item.found.size:
        raise DataError(f"{item.target.shown} is not as it was written; nothing was removed of {item.source.shown}")


def plan_remove(place: Place, *, recursive: bool) -> list[Place]:
    """The files that would go. Raises UserError for all of a bucket or disk, and for a folder without `recursive`."""
    refuse_root(place, "removed")
    if place.scheme in READ_ONLY:
        raise UserError(f"{place.shown} can be read alone; nothing there is removed")
    if place.is_local and os.path.islink(place.path):
        return [place]
    if not found_at(place).is_folder:
        return [place]
    if not recursive:
        raise UserError(f"{place.shown} is a folder; give --recursive to remove all that is in it")
    # Its mark first, so that nobody takes the rest of a folder for a whole one.
    names = sorted(store_of(place).files(place), key=lambda name: Path(name).name != MARKER)
    return [place.within(name) for name in names]


def remove_all(place: Place, files: list[Place]) -> None:
    """Remove these files of a place, marks first, and what is then an empty folder of it."""
    store = writable_store_of(place)
    with disk_errors(place):
        for is_marker in (True, False):
            in_threads(store.remove, [file for file in files if (file.name == MARKER) == is_marker])
        if isinstance(store, Objects):
            store.remove_marks(place)
        else:
            for folder, _, _ in os.walk(place.path, topdown=False):
                if not os.listdir(folder):
                    os.rmdir(folder)


def run_remove(place: Place, files: list[Place]) -> None:
    """Remove what `plan_remove` listed; of a disk, the folder with all that is in it."""
    if not place.is_local:
        remove_all(place, files)
        return
    with disk_errors(place):
        remove(Path(place.path))


def idle_uploads_of(place: Place) -> tuple[Bucket, list[Upload]]:
    """The uploads to a place, or below it, that nobody continues. Raises UserError for what is no object's place."""
    refuse_root(place, "searched for unfinished uploads")
    store = writable_store_of(place)
    if not isinstance(store, Objects):
        raise UserError(f"{place.shown} lies on a disk, but --uploads is for s3:// and oss://; leave it out")
    below = f"{place.path}/"
    found = [one for one in idle_uploads(store.bucket, place.path) if f"{one.key}/".startswith(below)]
    return store.bucket, found


def in_threads(action: Callable[[T], None], values: Iterable[T]) -> None:
    """Do the same with each, several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(action, values):
            pass


@contextmanager
def disk_errors(place: Place) -> Iterator[None]:
    """Say what a disk refuses in a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        if place.is_local:
            raise UserError(f"{error.filename or place.shown} does not exist; correct the path") from error
        raise UserError(f"{place.scheme}://{place.bucket} does not exist; make it first") from error
    except UserError:
        raise
    except OSError as error:
        what = error.filename or place.shown
        raise UserError(f"{what}: {error.strerror or error}; mend that or name another place, and try again") from error


def chunks_of(place: Place) -> Iterator[bytes]:
    """The content of a file, piece by piece. Raises UserError for a folder, DataError for what is not there."""
    found = found_at(place)
    if found.is_folder:
        raise UserError(f"{place.shown} is a folder; name a file")
    store = store_of(place)
    with disk_errors(place):
        if found.size is None:
            with staging_folder() as folder:
                store.read_whole(place, folder / "whole")
                yield from _pieces(folder / "whole")
        else:
            for start in range(0, found.size, PART_BYTES):
                yield store.read(place, start, min(start + PART_BYTES, found.size), found)


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from iter(lambda: file.read(PART_BYTES), b"")


def md5_of(place: Place) -> str:
    """The MD5 of a file in hex, of its bytes as they are read now."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in chunks_of(place):
        digest.update(chunk)
    return digest.hexdigest()


def size_of(place: Place) -> int:
    """The bytes of a file, or of all files below a folder."""
    found = found_at(place)
    if found.is_folder:
        return sum(entry.size or 0 for entry in store_of(place).files(place).values())
    return sum(map(len, chunks_of(place))) if found.size is None else found.size
