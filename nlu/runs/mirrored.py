"""Which files of a run folder its mirror keeps, under which keys, and how they are installed again.

    checkpoints/last/NAME            ->  checkpoints/last-STEP/NAME         while the run continues
    checkpoints/best-1/NAME          ->  checkpoints/best-step-STEP/NAME
    anything else                    ->  the same

Files from which a run continues are never overwritten: the keys of a state and of the best weights that it names
contain their step, and they count once a record names them (`nlu.storage.ledger`). All other files are complete at
every instant, except that tables may have rows after the state, as after a kill of the run itself.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypedDict

from nlu.config.errors import UserError
from nlu.runs.checkpoint import arrange_best, best_of, held_steps
from nlu.runs.takeover import CHECKPOINTS
from nlu.storage.files import inside, sync_folder
from nlu.storage.ledger import FOLDER
from nlu.storage.objects import ObjectStore
from nlu.storage.parts import WHOLE_BYTES
from nlu.storage.progress import Advance
from nlu.storage.settle import MARKER, find_whole, mark_whole, remove, swap
from nlu.storage.transfer import in_threads

log = logging.getLogger(__name__)

LEDGER = f"/{FOLDER}/"
RESULT = "result.json"
"""of a finished run; sent last"""
NOTE, OUTBOX = ".mirror.json", ".mirror"
"""in the folder: the note about its mirror, and links to files to be sent, which preserve their content"""
LEFT_OUT = (".lock", ".sweep.lock", ".jobs", ".taken", NOTE, OUTBOX, ".*.tmp", ".submitted", ".submitit", "__pycache__")
LAST, BEST = "last", "best-step"
BEGUN = ("config.yaml", "search.json")
"""files that make a folder that of a run or search"""


@dataclass(frozen=True)
class Version:
    """A file at one moment."""

    place: str
    """path within the folder"""
    key: str
    file: Path
    """a link to the content, or a copy on file systems without links"""
    size: int
    """in bytes; a table that grows later is read up to here"""
    identity: tuple[int, int, int]
    """inode, size and time of modification, which change when the file is replaced or written"""
    is_fixed: bool
    """whether it is part of a checkpoint, whose key is never reused for other content"""

    def content(self) -> bytes:
        with open(self.file, "rb") as file:
            return file.read(self.size)

    def sha256(self) -> str:
        with open(self.file, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Snapshot:
    """All files at one moment, and the folder with the links to them."""

    files: list[Version]
    outbox: Path
    has_ended: bool
    names: dict[str, str]
    """the name of each folder of a checkpoint in the run folder, and in the mirror once the run has ended"""


class FileEntry(TypedDict):
    """The content of a file of a checkpoint."""

    size: int
    """in bytes"""
    sha256: str


class RecordedFile(FileEntry):
    """A file of a checkpoint in a record of the mirror."""

    place: str
    """path within the folder to which it is fetched"""
    named: str
    """path within the run folder, where the best weights are in best-1, best-2, ..."""


def versions(folder: Path, outbox: Path, *, is_search: bool = False) -> list[Version]:
    """Return all files of the folder as they are now, linked into `outbox`.

    During the call a file may be replaced by another one of its name, but none may be removed. For a search, the
    folders of its jobs are left out: the jobs write to them at the same time, and mirror them.
    """
    found = []
    for number, (path, place, key, is_fixed) in enumerate(_files(folder, is_search)):
        link = outbox / str(number)
        status = _link(path, link)
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        found.append(Version(place, key, link, status.st_size, identity, is_fixed))
    return found


def _link(path: Path, link: Path) -> os.stat_result:
    """Link a file, and return the status of what was linked."""
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, link)
        return link.stat()
    except OSError:
        # On a file system without links, or for a file of another user, a copy takes longer but serves equally well.
        with open(path, "rb") as file, open(link, "wb") as copy:
            shutil.copyfileobj(file, copy)
            return os.fstat(file.fileno())


def _files(folder: Path, is_search: bool) -> Iterator[tuple[Path, str, str, bool]]:
    """Yield each file with its path in the folder, its key, and whether it is part of a checkpoint."""
    for top, checkpoints, names in _walk(folder, is_search):
        if checkpoints is not None:
            yield from _of_checkpoints(folder, checkpoints)
        for name in sorted(names):
            if not _is_left_out(name) and not Path(top, name).is_symlink():
                place = Path(top, name).relative_to(folder).as_posix()
                yield Path(top, name), place, place, False


def _walk(folder: Path, is_search: bool) -> Iterator[tuple[Path, Path | None, list[str]]]:
    """Yield each mirrored folder, the folder of checkpoints in it, and the names of its files.

    Folders of a search's jobs, to which other processes write, are never entered: `find_whole` would rename checkpoints
    there.
    """
    for top, folders, names in os.walk(folder):
        of_jobs = {name for name in folders if name.isdigit()} if is_search and Path(top) == folder else set()
        folders[:] = sorted(name for name in folders if not _is_left_out(name) and name not in of_jobs)
        checkpoints = None
        if CHECKPOINTS in folders:
            folders.remove(CHECKPOINTS)
            checkpoints = Path(top, CHECKPOINTS)
        yield Path(top), checkpoints, names


def _is_left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LEFT_OUT)


def _of_checkpoints(folder: Path, checkpoints: Path) -> Iterator[tuple[Path, str, str, bool]]:
    start = checkpoints.relative_to(folder).as_posix()
    held = {f"{BEST}-{step}": path for step, path in held_steps(checkpoints).items()}
    if (last := find_whole(checkpoints / LAST)) is not None:
        held[f"{LAST}-{_step_of(last)}"] = last
    for name, path in sorted(held.items()):
        place = LAST if path.name == LAST else name
        # The marker last, since it says that a folder is complete.
        for file in sorted(path.iterdir(), key=lambda file: (file.name == MARKER, file.name)):
            yield file, f"{start}/{place}/{file.name}", f"{start}/{name}/{file.name}", True
    for file in sorted(checkpoints.glob("*.json")):
        yield file, f"{start}/{file.name}", f"{start}/{file.name}", False


def _step_of(last: Path) -> int:
    return json.loads((last / "state.json").read_text(encoding="utf-8"))["state"]["step"]


def final_names(folder: Path, *, is_search: bool = False) -> dict[str, str]:
    """Return the name in the run folder of each folder of a checkpoint in the mirror of an unfinished run."""
    found = {}
    for _, checkpoints, _ in _walk(folder, is_search):
        if checkpoints is None:
            continue
        start = checkpoints.relative_to(folder).as_posix()
        for step, path in held_steps(checkpoints).items():
            found[f"{start}/{BEST}-{step}"] = f"{start}/{path.name}"
        if (last := find_whole(checkpoints / LAST)) is not None:
            found[f"{start}/{LAST}-{_step_of(last)}"] = f"{start}/{LAST}"
    return found


def receive(store: ObjectStore, content: Mapping[str, Any], incoming: Path, advance: Advance) -> None:
    """Fetch the files that a record names, each to its path in a folder, several small ones at once.

    Raises UserError if a file is damaged or its path leads out of the folder, FileNotFoundError if it was deleted.
    """
    fixed: Mapping[str, Any] = content["fixed"]

    def fetch(key: str) -> None:
        entry = fixed.get(key)
        path = inside(incoming, entry["place"] if entry else key, store.shown)
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = store.get_file(key, path, advance, hashed=entry is not None)
        if entry and digest != entry["sha256"]:
            raise UserError(
                f"{store.shown}/{key} is damaged: its sha256 is {digest}, not {entry['sha256']}; restore that object, "
                f"or start a new run with another {store.reference.what}"
            )

    sizes = {**content["loose"], **{key: entry["size"] for key, entry in fixed.items()}}
    # A small file takes as long as a round trip, so several are fetched at once.
    in_threads(fetch, [key for key, size in sizes.items() if size < WHOLE_BYTES])
    for key, size in sizes.items():
        if size >= WHOLE_BYTES:
            fetch(key)


def install(folder: Path, incoming: Path) -> None:
    """Move fetched files to their paths in the folder, the file that makes it a run folder last.

    All of them are synced to the disk when this returns, so that they may be noted.
    """
    configs, changed = [], {folder}
    for path in sorted(incoming.rglob("*")):
        place = folder / path.relative_to(incoming)
        if path.is_dir() or CHECKPOINTS in path.relative_to(incoming).parts:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        # Names of new folders are stored in their parents, which are synced too.
        changed |= {place.parent, *(above for above in place.parents if above.is_relative_to(folder))}
        if path.name in BEGUN:
            configs.append((path, place))
        else:
            os.replace(path, place)
    for checkpoints in sorted(path for path in incoming.rglob(CHECKPOINTS) if path.is_dir()):
        target = folder / checkpoints.relative_to(incoming)
        # The checkpoints of a mirror replace those of the folder as a whole: best ones of another state would not fit.
        if target.exists():
            remove(target)
        target.mkdir(parents=True, exist_ok=True)
        changed |= {target, target.parent}
        for path in sorted(checkpoints.iterdir()):
            if path.is_file():
                os.replace(path, target / path.name)
                continue
            # Their digests were checked, so they are complete.
            mark_whole(path)
            swap(path, target / (f".{path.name}" if path.name.startswith(BEST) else path.name))
        if (last := find_whole(target / LAST)) is not None:
            # A fold or seed that has ended is not opened again, so its checkpoints get their names here.
            arrange_best(target, [entry["step"] for entry in best_of(last)])
    for each in sorted(changed):
        sync_folder(each)
    for path, place in configs:
        os.replace(path, place)
    for each in {place.parent for _, place in configs}:
        sync_folder(each)


def mirrors_below(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of other mirrors among the keys of one."""
    return tuple({f"{key.partition(LEDGER)[0]}/" for key in keys if LEDGER in key})
