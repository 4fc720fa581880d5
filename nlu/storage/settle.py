"""Folders that are whole or not there, whatever kills the process that makes them, a power cut included.

Checkpoints, data stores and entries of the cache go the same way: written aside, every file and folder synced to the
disk, marked COMPLETE, the mark synced, renamed into place, and the folder around the place synced.

    settle(new, place)     where all would write the same: of several processes at once, the first one's stands
    replace(new, place)    where the newest stands; one process at a time
    find_whole(place)      what `replace` left, whatever killed it: the newest that is whole
    copy_whole(place, to)  the same for readers, while `replace` may be at work; changes nothing there
"""

import errno
import glob
import logging
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.files import sync_file, sync_folder, umask
from nlu.storage.locks import hold_lock

log = logging.getLogger(__name__)

MARKER = "COMPLETE"
COPY_TRIES, COPY_PAUSE_S = 20, 0.01
"""A place has no whole folder for the instant between two renames, which is over at once."""
COPY_BYTES = 1 << 20


def is_whole(folder: Path) -> bool:
    """Whether the folder bears the mark that is set last."""
    return (folder / MARKER).is_file()


def mark_whole(folder: Path, note: str = "") -> None:
    """Have all that is below the folder on the disk, then mark it COMPLETE; `note` is what the mark says."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not Path(path, name).is_symlink():
                sync_file(Path(path, name))
        sync_folder(Path(path))
    with open(folder / MARKER, "w", encoding="utf-8") as marker:
        marker.write(note)
        marker.flush()
        os.fsync(marker.fileno())
    sync_folder(folder)


def settle(new: Path, place: Path, *, note: str = "", is_good: Callable[[Path], bool] = is_whole) -> bool:
    """Mark `new` and put it at `place`, unless something good is there already; returns whether it is now there.

    Both lie on the same file system; the folder around the place is made. What lies at the place and is not good goes:
    a folder without its mark or, if `is_good` looks closer, one that lost something. Any number of processes may settle
    the same place at once, and what one of them has put there stays. Raises OSError where the disk does not take it.
    """
    mark_whole(new, note)
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = place.with_name(f".{place.name}.lock")
    # Without the lock one of two could find a broken folder there and move away what the other has put there meanwhile.
    with hold_lock(lock, wait_s=math.inf, optional=True, what=str(place)):
        try:
            if is_good(place):
                return False
            if os.path.lexists(place):
                log.warning("%s is damaged or incomplete; it is made again", place)
                os.rename(place, place.with_name(f".{place.name}.{secrets.token_hex(8)}.broken"))
            os.rename(new, place)
        finally:
            lock.unlink(missing_ok=True)
    sync_folder(place.parent)
    for broken in place.parent.glob(f".{glob.escape(place.name)}.*.broken"):
        # It may be another user's, and only that user can remove it.
        with suppress(OSError):
            remove(broken)
    return True


def replace(new: Path, place: Path, *, note: str = "") -> None:
    """Mark `new` and put it in the place of what is at `place`; the caller sees to it that nobody else does so at once.

    At every instant `find_whole` finds the old or the new one: an older one is called `.NAME.old` while `new` is being
    renamed. Raises OSError where the disk does not take it, after which the older one stands.
    """
    mark_whole(new, note)
    swap(new, place)


def swap(new: Path, place: Path) -> None:
    """The second half of `replace`: rename a marked folder into a place that may be taken."""
    old = place.with_name(f".{place.name}.old")
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
    """Make the folder in which to write what `replace` is to put at the place: empty, whatever a kill left there."""
    find_whole(place)
    new = place.with_name(f".{place.name}.new")
    remove(new)
    new.mkdir(parents=True)
    return new


def candidates(place: Path) -> list[Path]:
    """The names under which the newest whole folder of a place may lie, the best of them first."""
    return [place, place.with_name(f".{place.name}.new"), place.with_name(f".{place.name}.old")]


def find_whole(place: Path) -> Path | None:
    """The folder at the place, after mending the names that a kill within `replace` leaves; None where none is whole.

    Only for the process that may write there.
    """
    found = next((path for path in candidates(place) if is_whole(path)), None)
    if found is not None and found != place:
        remove(place)
        os.rename(found, place)
        sync_folder(place.parent)
        log.info("%s was being replaced; %s is complete and stands for it", place, found.name)
    return None if found is None else place


def copy_whole(place: Path, target: Path) -> bool:
    """Copy the newest whole folder of a place, all files from the same one; returns whether there is one.

    For whoever may not write there: another process may be replacing it meanwhile. The folder holds only files.
    """
    for attempt in range(COPY_TRIES):
        if attempt:
            time.sleep(COPY_PAUSE_S)
        if any(copy_files(path, target) for path in candidates(place)):
            return True
    return False


def copy_files(folder: Path, target: Path) -> bool:
    """Copy a whole folder of files, or nothing where it is none or is replaced or removed while its files are opened.

    A folder keeps its identity when it is renamed, and `remove` takes its mark off first: so all files belong together.
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
        # What another host removes is gone for a reader on NFS also where it is open.
        if error.errno != errno.ESTALE:
            raise
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def require_new(place: Path, key: str) -> None:
    """Raise UserError, calling it `key`, where a command that writes a new folder would find something there, or could
    not make it."""
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise UserError(f"{key} is {place}, which exists; nothing was written; choose another, or remove it")
    require_writable(_above(place.absolute()), key, place)


def require_writable(folder: Path, key: str, place: Path) -> None:
    """Raise UserError, calling it `key`, where nothing can be made in the folder in which the place is to lie."""
    try:
        with tempfile.TemporaryDirectory(prefix=".nlu-", dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{key} is {place}, but nothing can be made in {folder} ({error.strerror or error}); choose another"
        ) from error


def _above(place: Path) -> Path:
    """The nearest folder above a place that is there."""
    return next(folder for folder in place.parents if folder.is_dir())


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Give a folder in which to write what is to lie at the place; it gets there when the block ends well, else it
    goes. At the place there is nothing, or an empty folder; folders above it are made at the end."""
    place = place.absolute()
    new = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=_above(place)))
    try:
        yield new
        new.chmod(0o777 & ~umask())
        place.parent.mkdir(parents=True, exist_ok=True)
        new.rename(place)
    finally:
        if new.exists():
            remove(new)


def remove(path: Path) -> None:
    """Remove a file or folder, its mark first, so that no reader takes the rest of a folder for a whole one."""
    if path.is_dir() and not path.is_symlink():
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
