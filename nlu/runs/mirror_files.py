"""The files of a run folder that its mirror keeps: linked as they are at a save, put into a folder again, and freed."""

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from nlu.config.errors import UserError
from nlu.runs.freeing import BEST, CHECKPOINTS
from nlu.storage.files import inside, read_json, sync_file, sync_folder, write_json
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import Pointers, Stored, TakenOver, fetch
from nlu.storage.refusals import Unreachable
from nlu.storage.settle import MARKER, find_whole, is_whole, remove

log = logging.getLogger(__name__)

NOTE, OUTBOX = ".mirror.json", ".mirror"
"""in the folder: the note about its mirror, and links to files to be sent, which preserve their content"""
LEFT_OUT = (".lock", ".sweep.lock", ".jobs", ".taken", NOTE, OUTBOX, ".*.tmp", ".submitted", ".submitit", "__pycache__")
LAST = "last"
BEGUN = ("config.yaml", "search.json")
"""files that make a folder that of a run or search"""
KEY = "mirror"
TRIES = 5
"""to read or take a mirror that changes meanwhile"""
PART_BYTES = 1 << 20


@dataclass(frozen=True)
class Version:
    """A file at one moment."""

    place: str
    """path within the folder"""
    file: Path
    """a link to the content, or a copy on file systems without links"""
    identity: tuple[int, int, int]
    """inode, size and time of modification, which change when the file is replaced or written"""

    @property
    def size(self) -> int:
        """In bytes; a table or log that grows later is read up to here."""
        return self.identity[1]

    def parts(self) -> Iterator[bytes]:
        with open(self.file, "rb") as file:
            while part := file.read(min(PART_BYTES, self.size - file.tell())):
                yield part

    def sha256(self) -> str:
        found = hashlib.sha256()
        for part in self.parts():
            found.update(part)
        return found.hexdigest()

    def whole(self) -> Path:
        """Return a file with this content only: the link, or a copy of a file that may grow."""
        if CHECKPOINTS in self.place.split("/"):
            return self.file
        copy = self.file.with_name(f"{self.file.name}.whole")
        with open(copy, "wb") as file:
            file.writelines(self.parts())
        return copy


class Note:
    """The note in a folder about its mirror."""

    def __init__(self, folder: Path, mirror: str):
        self.path, self.mirror = folder / NOTE, mirror
        found = read_json(self.path) or {}
        self.is_there = found.get("mirror") == mirror
        self.saves: list[str] = found.get("saves", [])
        """saves that the mirror may have, and that the folder is at or ahead of"""
        self.brought: str | None = found.get("brought")
        """the save that was brought back, without the state to continue from"""

    def write(self, *saves: str | None, **brought: str | None) -> None:
        self.saves = list(filter(None, saves))
        write_json(self.path, {"mirror": self.mirror, "saves": self.saves, **brought})


def versions(folder: Path, outbox: Path, *, is_search: bool = False) -> list[Version]:
    """Return all files of the folder as they are now, linked into `outbox`.

    During the call a file may be replaced by another one of its name, but none may be removed. For a search, the
    folders of its jobs are left out: the jobs write to them at the same time, and mirror them.
    """
    found = []
    for number, path in enumerate(_files(folder, is_search)):
        status = _link(path, link := outbox / str(number))
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        found.append(Version(path.relative_to(folder).as_posix(), link, identity))
    return found


def _link(path: Path, link: Path) -> os.stat_result:
    """Link a file, and return the status of what was linked."""
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, link)
    except OSError:
        # On a file system without links, or for a file of another user, a copy takes longer but serves equally well.
        shutil.copy2(path, link)
    return link.stat()


def _files(folder: Path, is_search: bool) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        here = Path(top)
        if here.name == CHECKPOINTS:
            # After repairing the names that a kill left.
            find_whole(here / LAST)
            folders[:] = [path.name for path in here.iterdir() if is_whole(path) and not path.name.startswith(".last")]
        elif is_search and here == folder:
            # Never entered: `find_whole` would rename checkpoints there.
            folders[:] = [name for name in folders if not name.isdigit()]
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        yield from (here / name for name in sorted(names) if not _is_left_out(name) and not (here / name).is_symlink())


def _is_left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LEFT_OUT)


def install(folder: Path, incoming: Path) -> None:
    """Move fetched files to their paths in the folder, the file that makes it a run folder last.

    All of them are synced to the disk when this returns, so that they may be noted.
    """
    for checkpoints in sorted(path for path in incoming.rglob(CHECKPOINTS) if path.is_dir()):
        # Those of the mirror replace those of the folder as a whole: best ones of another state would not fit.
        if (target := folder / checkpoints.relative_to(incoming)).exists():
            remove(target)
    # In a checkpoint the marker last, since it says that the folder is complete.
    files = sorted((path for path in incoming.rglob("*") if path.is_file()), key=lambda path: path.name == MARKER)
    for last in (False, True):
        changed = {folder}
        for path in [path for path in files if (path.name in BEGUN and CHECKPOINTS not in path.parts) == last]:
            sync_file(path)
            place = folder / path.relative_to(incoming)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
            # Names of new folders are stored in their parents, which are synced too.
            changed |= {above for above in place.parents if above.is_relative_to(folder)}
        for each in sorted(changed):
            sync_folder(each)


def has_begun(folder: Path) -> bool:
    """Return whether a run or a search has begun in the folder."""
    return any((folder / name).is_file() for name in BEGUN)


def require_own_run(folder: Path, note: Note, remedy: str) -> None:
    """Raise UserError if the folder holds a run that is not that of the mirror."""
    if has_begun(folder) and not note.is_there:
        raise UserError(
            f"{folder} and {note.mirror} both hold a run, and the one is not the mirror of the other; {remedy}"
        )


def bring(store: ObjectStore, files: Mapping[str, Stored], folder: Path, say: Callable[[str], None]) -> None:
    """Put the files of a mirror into the folder. After a kill amid it, the note says that they are not all there."""
    incoming = folder / OUTBOX / "incoming"
    # Everything in `incoming` is installed, so leftovers of an earlier fetch must go.
    remove(incoming)
    say(f"fetching {folder} from {store.shown}, {sum(file.size for file in files.values()) / 1e6:.0f} MB")
    incoming.mkdir(parents=True)
    Note(folder, store.shown).write()
    fetch(store, {inside(incoming, place, store.shown): file for place, file in files.items()})
    install(folder, incoming)
    remove(incoming)


_BRINGING = threading.Lock()
"""so that of two threads that fetch the same folder the second one finds it complete"""


def bring_back(url: str, folder: Path, say: Callable[[str], None] = log.info) -> bool:
    """Fetch a run of another process into a folder, even while it is written; returns whether the mirror holds one.

    `last` is left out, since a command that continues the run fetches it. Raises UserError if the address is wrong or
    an object is damaged, Unreachable if the service does not respond.
    """
    store = ObjectStore(url, KEY)
    with _BRINGING:
        for _ in range(TRIES):
            there, note = Pointers(store).newest(), Note(folder, store.shown)
            if there is None or not there.files:
                return False
            if there.save in (note.brought, *note.saves):
                return True
            require_own_run(folder, note, "move the folder away, then give the same command again")
            files = {place: file for place, file in there.files.items() if LAST not in place.split("/")}
            try:
                bring(store, files, folder, say)
            except FileNotFoundError:
                # The run has saved again, and its files were replaced.
                continue
            Note(folder, store.shown).write(brought=there.save)
            return True
    raise Unreachable(f"{url} changes faster than it can be read; try again later")


def read_mirrored(url: str, place: str) -> bytes:
    """Return a file of a run from its mirror. Raises FileNotFoundError if the mirror does not have it."""
    store = ObjectStore(url, KEY)
    there = Pointers(store).newest()
    if there is None or place not in there.files:
        raise FileNotFoundError(f"{store.shown}/{place}")
    return store.get(there.files[place].key)


def free_mirror(url: str, *, keeps_best: bool) -> bool:
    """Remove the checkpoints of a run that is never continued, except the best ones with `keeps_best`.

    Returns False, without a change, if another process writes to the mirror or did not release it. It can be repeated
    after a kill. Raises Unreachable if the service does not respond.
    """
    pointers = Pointers(ObjectStore(url, KEY))
    if (there := pointers.newest()) is None:
        return True
    kept = {place: file for place, file in there.files.items() if _stays(place, keeps_best)}
    if kept == there.files and not there.gone:
        return True
    try:
        if not pointers.take(there):
            return False
        # Only what the newest pointer names counts, so it comes before the deletions, with the keys that they are of.
        gone = there.keys - {file.key for file in kept.values()}
        pointers.put(files=kept, gone=(*there.gone, *gone), released=True)
        pointers.clean(there)
    except TakenOver:
        return False
    return True


def _stays(place: str, keeps_best: bool) -> bool:
    folders = place.split("/")[:-1]
    return CHECKPOINTS not in folders or (keeps_best and any(map(BEST.fullmatch, folders)))
