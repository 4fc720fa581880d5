"""Which files of a folder of runs its mirror keeps, under which keys, and how they get back to where they were.

    checkpoints/last/NAME            ->  checkpoints/last-STEP/NAME         while the run continues
    checkpoints/best-1/NAME          ->  checkpoints/best-step-STEP/NAME
    anything else                    ->  the same

What is resumed from is never replaced in place: a state and the best weights that it names have keys of their own step,
and count once a record names them (`nlu.storage.ledger`). All other files are whole at every instant, tables may hold
rows beyond the state, as after a kill of the run itself.
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
from typing import Any

from nlu.config.errors import UserError
from nlu.runs.checkpoint import arrange_best, best_of, held_steps
from nlu.runs.takeover import CHECKPOINTS
from nlu.storage.backend import Advance
from nlu.storage.files import sync_folder
from nlu.storage.ledger import FOLDER
from nlu.storage.objects import ObjectStore
from nlu.storage.parts import WHOLE_BYTES
from nlu.storage.settle import MARKER, find_whole, mark_whole, remove, swap
from nlu.storage.transfer import in_threads

log = logging.getLogger(__name__)

LEDGER = f"/{FOLDER}/"
RESULT = "result.json"
"""of a run that ended; mirrored last of all"""
NOTE, OUTBOX = ".mirror.json", ".mirror"
"""in the folder: what its mirror holds of it; files that wait to be sent, as links, so that they stay what they were"""
LEFT_OUT = (
    ".lock", ".sweep.lock", ".jobs", ".taken", NOTE, OUTBOX, ".*.tmp", ".submitted", ".submitit", "__pycache__",
)  # fmt: skip
LAST, BEST = "last", "best-step"
BEGUN = ("config.yaml", "search.json")
"""make a folder a run's or a search's"""


@dataclass(frozen=True)
class Version:
    """A file as it was at one moment."""

    place: str
    """path within the folder"""
    key: str
    file: Path
    """where these bytes can be read: a link beside, or a copy where there are no links"""
    size: int
    """in bytes; a table that has grown since is read up to here"""
    identity: tuple[int, int, int]
    """inode, size, time of change: differs when the file was replaced or written"""
    is_fixed: bool
    """part of a checkpoint, whose key no other bytes ever have"""

    def content(self) -> bytes:
        with open(self.file, "rb") as file:
            return file.read(self.size)

    def sha256(self) -> str:
        with open(self.file, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def versions(folder: Path, outbox: Path, *, is_search: bool = False) -> list[Version]:
    """Return all files of the folder as they are now, linked into `outbox`; called between two changes of them.

    Of a search the folders of its jobs are left out, which write to them at the same time, and keep them themselves.
    """
    found = []
    for number, (path, place, key, is_fixed) in enumerate(_files(folder, is_search)):
        status = path.stat()
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        link = _linked(path, outbox / str(number))
        found.append(Version(place, key, link, status.st_size, identity, is_fixed))
    return found


def _linked(path: Path, link: Path) -> Path:
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, link)
    except OSError:
        # A file system without links, or a file of another user: a copy costs time, and is as good.
        shutil.copyfile(path, link)
    return link


def _files(folder: Path, is_search: bool) -> Iterator[tuple[Path, str, str, bool]]:
    """Yield each file with its place in the folder, its key, and whether it is part of a checkpoint."""
    for top, checkpoints, names in _walk(folder, is_search):
        if checkpoints is not None:
            yield from _of_checkpoints(folder, checkpoints)
        for name in sorted(names):
            if not _is_left_out(name) and not Path(top, name).is_symlink():
                place = Path(top, name).relative_to(folder).as_posix()
                yield Path(top, name), place, place, False


def _walk(folder: Path, is_search: bool) -> Iterator[tuple[Path, Path | None, list[str]]]:
    """Yield each folder that is mirrored, the folder of checkpoints in it, and the names of its files.

    What other processes write to meanwhile, the jobs of a search, is never entered: looking for a whole checkpoint
    there would rename it.
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
        for file in sorted(path.iterdir(), key=lambda file: (file.name == MARKER, file.name)):
            yield file, f"{start}/{place}/{file.name}", f"{start}/{name}/{file.name}", True
    for file in sorted(checkpoints.glob("*.json")):
        yield file, f"{start}/{file.name}", f"{start}/{file.name}", False


def _step_of(last: Path) -> int:
    return json.loads((last / "state.json").read_text(encoding="utf-8"))["state"]["step"]


def final_names(folder: Path, *, is_search: bool = False) -> dict[str, str]:
    """Return, for each folder of a checkpoint as it is mirrored while a run continues, the name that it has here."""
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
    """Fetch what a record names, each file to its place in a folder, small ones several at a time.

    Raises UserError for one that is damaged, or whose place leads out of the folder, FileNotFoundError for one that is
    gone.
    """
    fixed: Mapping[str, Any] = content["fixed"]

    def fetch(key: str) -> None:
        entry = fixed.get(key)
        path = _inside(incoming, entry["place"] if entry else key, store)
        digest = store.get_file(key, path, advance, hashed=entry is not None)
        if entry and digest != entry["sha256"]:
            raise UserError(
                f"{store.shown}/{key} is damaged: its sha256 is {digest}, not {entry['sha256']}; restore that object, "
                f"or start anew with another {store.reference.what}"
            )

    sizes = {**content["loose"], **{key: entry["size"] for key, entry in fixed.items()}}
    in_threads(fetch, [key for key, size in sizes.items() if size < WHOLE_BYTES])
    for key, size in sizes.items():
        if size >= WHOLE_BYTES:
            fetch(key)


def _inside(folder: Path, place: str, store: ObjectStore) -> Path:
    """Return the path of a place that a record names, which must not lead out of the folder."""
    path = folder / place
    if not place or Path(place).is_absolute() or ".." in Path(place).parts:
        raise UserError(
            f"the mirror names {place!r}, which would lie outside of the run's folder; choose another "
            f"{store.reference.what}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def install(folder: Path, incoming: Path) -> None:
    """Put files that were fetched, by their places, into the folder; what makes it a run's comes last.

    All of it is on the disk when this returns, so that a note of it may be written.
    """
    configs, changed = [], {folder}
    for path in sorted(incoming.rglob("*")):
        place = folder / path.relative_to(incoming)
        if path.is_dir() or CHECKPOINTS in path.relative_to(incoming).parts:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        # The names of new folders stand in those around them.
        changed |= {place.parent, *(above for above in place.parents if above.is_relative_to(folder))}
        if path.name in BEGUN:
            configs.append((path, place))
        else:
            os.replace(path, place)
    for checkpoints in sorted(path for path in incoming.rglob(CHECKPOINTS) if path.is_dir()):
        target = folder / checkpoints.relative_to(incoming)
        if target.exists():
            remove(target)
        target.mkdir(parents=True, exist_ok=True)
        changed |= {target, target.parent}
        for path in sorted(checkpoints.iterdir()):
            if path.is_file():
                os.replace(path, target / path.name)
                continue
            mark_whole(path)
            swap(path, target / (f".{path.name}" if path.name.startswith(BEST) else path.name))
        if (last := find_whole(target / LAST)) is not None:
            # Of several folds and seeds those that have ended are not looked at any more.
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


def abort_uploads(store: ObjectStore, loose: Iterable[str]) -> None:
    """Give up what processes that held a mirror before had begun to upload, since nobody continues it: files of
    checkpoints, and the others that its record names.

    A store that does not grant it, or is away, keeps that. Nothing is done to mirrors below this one.
    """
    try:
        uploads = [one for one in store.others_uploads() if CHECKPOINTS in one[0].split("/") or one[0] in loose]
        # A mirror below claims its folder before it uploads, so the keys of all that have uploads are there by now.
        below = mirrors_below(store.list()) if uploads else ()
        for key, upload in uploads:
            if not key.startswith(below):
                store.abort(upload)
    except (UserError, OSError) as error:
        log.debug("unfinished uploads below %s stay: %s", store.shown, error)
