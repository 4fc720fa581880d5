"""Folders that are complete or absent, even if the process that writes them is killed or the power fails.

Checkpoints, data stores and entries of the cache are all written like this: written to another name, every file and
folder synced to the disk, marked COMPLETE, the mark synced, renamed to the final name, and the parent folder synced.

    settle(new, place)     if all processes would write the same: the folder of the first one stays
    replace(new, place)    if the newest one counts; one process at a time
    find_whole(place)      the newest complete folder that `replace` left, after any kill
    copy_whole(place, to)  the same for readers, while `replace` may be running; changes nothing there
"""

import errno
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.files import sync_file, sync_folder, umask
from nlu.storage.locks import hold_lock

log = logging.getLogger(__name__)

MARKER = "COMPLETE"
COPY_TRIES, COPY_PAUSE_S = 20, 0.01
"""between two renames of `replace`, no folder is at the place for an instant"""
COPY_BYTES = 1 << 20


def is_whole(folder: Path) -> bool:
    """Return whether a folder has the mark that is written last."""
    return (folder / MARKER).is_file()


def mark_whole(folder: Path, note: str = "") -> None:
    """Sync everything below a folder to the disk, then mark it COMPLETE; `note` is the content of the mark."""
    # fsync of a folder writes its names; that of a file, its content. The mark must be the last to reach the disk.
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            # The file behind a link does not belong to this folder.
            if not Path(path, name).is_symlink():
                sync_file(Path(path, name))
        sync_folder(Path(path))
    with open(folder / MARKER, "w", encoding="utf-8") as marker:
        marker.write(note)
        marker.flush()
        os.fsync(marker.fileno())
    sync_folder(folder)


def settle(new: Path, place: Path, *, note: str = "", is_good: Callable[[Path], bool] = is_whole) -> bool:
    """Mark `new` and rename it to `place`, unless a good folder is there already; returns whether it was renamed.

    Both are on the same file system; the parent folder is created. A folder at the place that is not good is removed:
    one without its mark or, with a stricter `is_good`, one with missing files. Any number of processes may settle the
    same place at once; the folder of one of them stays. Raises OSError if the disk refuses.
    """
    mark_whole(new, note)
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = place.with_name(f".{place.name}.lock")
    # Without the lock, a process that found a broken folder could remove the good one of another process.
    with hold_lock(lock, wait_s=math.inf, optional=True, what=str(place)):
        try:
            # Asked under the lock: another process may have settled it while this one waited.
            if is_good(place):
                return False
            if os.path.lexists(place):
                log.warning("%s is damaged or incomplete; it is made again", place)
                remove(place)
            os.rename(new, place)
        finally:
            lock.unlink(missing_ok=True)
    sync_folder(place.parent)
    return True


def replace(new: Path, place: Path) -> None:
    """Mark `new` and rename it to `place`, replacing the folder there. Only one process may do so at a time.

    At every instant `find_whole` finds the old or the new folder: the old one has the name `.NAME.old` while `new` is
    renamed. Raises OSError if the disk refuses; the old folder then stays.
    """
    mark_whole(new)
    swap(new, place)


def swap(new: Path, place: Path) -> None:
    """Rename a marked folder to `place`, replacing the folder there: the second half of `replace`."""
    old = place.with_name(f".{place.name}.old")
    # A folder without its mark is a leftover, and need not be kept.
    had_one = is_whole(place)
    if had_one:
        remove(old)
        os.rename(place, old)
    else:
        remove(place)
    try:
        os.rename(new, place)
    except OSError:
        if had_one:
            os.rename(old, place)
        raise
    sync_folder(place.parent)
    remove(old)


def aside(place: Path) -> Path:
    """Create the empty folder in which to write the argument of `replace`; leftovers of a kill are removed."""
    find_whole(place)
    new = place.with_name(f".{place.name}.new")
    remove(new)
    new.mkdir(parents=True)
    return new


def candidates(place: Path) -> list[Path]:
    """Return the paths at which the newest complete folder of a place may be, in order of preference."""
    # The new one before the old one: if both are complete, a kill came between the two renames of `swap`.
    return [place, place.with_name(f".{place.name}.new"), place.with_name(f".{place.name}.old")]


def find_whole(place: Path) -> Path | None:
    """Return `place` if a complete folder is there, after repairing the names that a kill left; else None.

    Only for the process that may write there.
    """
    found = next((path for path in candidates(place) if is_whole(path)), None)
    if found is not None and found != place:
        remove(place)
        os.rename(found, place)
        sync_folder(place.parent)
        log.info("%s was being replaced; %s is complete and takes its place", place, found.name)
    return None if found is None else place


def copy_whole(place: Path, target: Path) -> bool:
    """Copy the newest complete folder of a place, all files from the same one; returns whether one exists.

    It is safe while another process replaces the folder, which must contain only files.
    """
    for attempt in range(COPY_TRIES):
        if attempt:
            time.sleep(COPY_PAUSE_S)
        if any(copy_files(path, target) for path in candidates(place)):
            return True
    return False


def copy_files(folder: Path, target: Path) -> bool:
    """Copy a complete folder of files; returns False, without a copy, if it is replaced or removed meanwhile.

    An open folder keeps its identity when it is renamed, and `remove` deletes its mark first, so all copied files
    belong together.
    """
    try:
        with ExitStack() as opened:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, descriptor)
            files = {
                name: opened.enter_context(open(os.open(name, os.O_RDONLY, dir_fd=descriptor), "rb"))
                for name in os.listdir(descriptor)
            }
            os.stat(MARKER, dir_fd=descriptor)
            target.mkdir(parents=True)
            for name, file in files.items():
                with open(target / name, "wb") as copy:
                    shutil.copyfileobj(file, copy, COPY_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        # On NFS, a file that another host removes is gone even for a reader that has opened it.
        if error.errno != errno.ESTALE:
            raise
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def require_new(place: Path, key: str) -> None:
    """Raise UserError, which calls the place by `key`, if something exists there or a folder cannot be created."""
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise UserError(f"{key} is {place}, which exists; nothing was written; choose another, or remove it")
    require_writable(_above(place.absolute()), key, place)


def require_writable(folder: Path, key: str, place: Path) -> None:
    """Raise UserError, which calls the place by `key`, if nothing can be created in the folder for it."""
    try:
        with tempfile.TemporaryDirectory(prefix=".nlu-", dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{key} is {place}, but nothing can be created in {folder} ({error.strerror or error}); choose another"
        ) from error


def _above(place: Path) -> Path:
    """Return the nearest existing folder above a place."""
    return next(folder for folder in place.parents if folder.is_dir())


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Give a folder that is renamed to `place` if the block ends without an error, and removed otherwise.

    At the place there must be nothing, or an empty folder. Folders above it are created at the end.
    """
    place = place.absolute()
    # In the nearest existing folder: on the same disk, so that a rename suffices, and without leaving empty folders
    # after an error.
    new = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=_above(place)))
    try:
        yield new
        # mkdtemp creates a folder that only this user may read.
        new.chmod(0o777 & ~umask())
        place.parent.mkdir(parents=True, exist_ok=True)
        new.rename(place)
    finally:
        if new.exists():
            remove(new)


def remove(path: Path) -> None:
    """Remove a file or folder, its mark first, so that no reader takes the rest of a folder for a complete one."""
    if path.is_dir() and not path.is_symlink():
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
