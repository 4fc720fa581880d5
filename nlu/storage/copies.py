"""Copies, on this machine, of run folders in a bucket, of the files that a command reads.

A copy is updated each time it is requested; files that already match the bucket stay. The records of runs, which are
all files except weights, are copied first; the weights of a checkpoint are copied when it is known which one is used.

The copy of a run that is still being mirrored contains what the newest record of its mirror names
(`nlu.storage.ledger`): its checkpoints, under the names that they have in the run folder, each verified by its sha256.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.addresses import is_object
from nlu.config.errors import DataError, UserError
from nlu.config.words import path_text, show_as
from nlu.storage.access import FileInfo, stat
from nlu.storage.access import files as files_of
from nlu.storage.cache import cache_dir, text_digest, unwritable
from nlu.storage.files import inside, read_json, write_json
from nlu.storage.ledger import FOLDER, Ledger
from nlu.storage.locks import hold_lock
from nlu.storage.objects import ObjectStore
from nlu.storage.places import Place, parse_place
from nlu.storage.refusals import Changed
from nlu.storage.settle import remove
from nlu.storage.temporary import Pauses
from nlu.storage.transfer import AT_ONCE, Item, run_copies

CHECKPOINTS, RESULT = "checkpoints", "result.json"
LEFT_OUT = frozenset({FOLDER, ".begun"})
KNOWN, LOCK = "known.json", "lock"
AGAIN_S = Pauses(0.25, 1.0, 9)
"""before a run is read again that was written while it was read"""


@dataclass(frozen=True)
class Original:
    """A file in the bucket that is part of a copy."""

    place: Place
    info: FileInfo
    sha256: str | None
    """in the record of a mirror, None if no record names the file"""

    @property
    def version(self) -> str:
        known = self.sha256 or repr((self.info.size, self.info.etag, self.info.modified_s))
        return hashlib.sha256(known.encode()).hexdigest()[:16]


Originals = Mapping[str, Original]
"""by path relative to the copy"""


@dataclass(frozen=True)
class Copied:
    """The place that a folder of this process is a copy of, and its files when it was last listed."""

    place: Place
    files: Originals


class Missing(Changed):
    """The newest record of a mirror names an object that does not exist: the run continued, or it was deleted."""

    def __init__(self, mirror: Place, source: Place, save: str):
        super().__init__(f"{source.shown} was removed while it was read; try again")
        self.mirror, self.source, self.save = mirror, source, save


_copies: dict[Path, Copied] = {}


def records_of(reference: str | Path, what: str) -> Path:
    """Return a local folder of the runs at a reference: the folder itself, or a copy without weights.

    Raises DataError if the bucket has no such folder, UserError if the service does not respond or rejects the request.
    """
    if not is_object(reference):
        return Path(reference)
    place = parse_place(str(reference), what)
    info = stat(place)
    if info is None:
        raise DataError(f"{what} is {place.shown}, which does not exist; correct it")
    if not info.is_folder:
        raise DataError(f"{what} is {place.shown}, which is a file; name a folder of runs")
    folder = cache_dir() / "copies" / text_digest(place.shown) / (place.name or place.bucket)
    _bring_newest(place, folder, _is_record)
    show_as(folder, place.shown)
    return folder


def all_records_of(references: Sequence[str | Path], what: str) -> list[Path]:
    """Return `records_of` each reference."""
    return [records_of(reference, what) for reference in references]


def complete(folder: Path) -> Path:
    """Copy all files of a folder, such as a checkpoint, if it is in a copy; returns the folder."""
    # A list, because `_bring_newest` below assigns to `_copies`.
    for top, copied in list(_copies.items()):
        if not folder.is_relative_to(top):
            continue

        def is_wanted(name: str, top: Path = top) -> bool:
            return (top / name).is_relative_to(folder)

        try:
            _bring(top, copied, is_wanted, is_newest=False)
        except Changed:
            # The run continued: listed files are gone, or another process has updated the copy.
            _bring_newest(copied.place, top, lambda name: _is_record(name) or is_wanted(name))
    return folder


def place_text(folder: Path) -> str:
    """Return a folder as the user wrote it, or the place in the bucket that it is a copy of."""
    return path_text(folder) if any(folder.is_relative_to(top) for top in _copies) else str(folder)


def _is_record(name: str) -> bool:
    return CHECKPOINTS not in name.split("/")[:-1] or name.endswith(".json")


def _bring_newest(place: Place, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    """Copy the wanted files into the folder, all as they are in the bucket at one moment."""
    missing: Missing | None = None
    for pause_s in (*AGAIN_S, None):
        try:
            copied = Copied(place, _originals(place))
            _bring(folder, copied, is_wanted, is_newest=True)
            _copies[folder] = copied
            return
        except Changed as error:
            before, missing = missing, error if isinstance(error, Missing) else None
            if pause_s is None:
                # Twice the same record lacked its object; a run that continued meanwhile would have changed the record.
                if before and missing and before.save == missing.save:
                    raise DataError(
                        f"{missing.mirror.shown} is damaged: its newest record names {missing.source.shown}, which "
                        "does not exist; restore that object"
                    ) from error
                raise
            time.sleep(pause_s)


def _bring(folder: Path, copied: Copied, is_wanted: Callable[[str], bool], *, is_newest: bool) -> None:
    """Copy the wanted files into the folder, and remove files that the bucket does not have in this version.

    Without `is_newest` the bucket was listed a while ago. Then nothing is removed, since other processes may have
    updated the folder, and Changed is raised if a wanted file differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Lock and list are beside the copy: in it, they would look like files of the bucket.
    with hold_lock(folder.parent / LOCK, wait_s=float("inf"), optional=True, what=str(folder)):
        known = read_json(folder.parent / KNOWN) or {}
        there = {name: known[name] for name in known if (folder / name).is_file()}
        versions = {name: file.version for name, file in copied.files.items()}
        differing = [name for name in there if versions.get(name) != there[name]]
        # The caller lists the bucket again then (`complete`).
        if not is_newest and any(map(is_wanted, differing)):
            raise Changed(f"{copied.place.shown} changed while it was read; try again")
        for name in differing if is_newest else []:
            remove(folder / name)
            del there[name]
        wanted = {name: file for name, file in copied.files.items() if is_wanted(name) and name not in there}
        # A leftover of a killed process must not count as copied below if its download fails.
        for name in wanted:
            (folder / name).unlink(missing_ok=True)
        # A file that is being written is not in KNOWN, so it is copied again if this process is killed.
        write_json(folder.parent / KNOWN, there)
        try:
            run_copies(
                [
                    Item(file.place, file.info, _local(folder / name), None, file.sha256)
                    for name, file in wanted.items()
                ],
                copied.place.shown,
            )
        except UserError as error:
            if refusal := unwritable(copied.place.shown, error.__cause__):
                raise refusal from error
            raise
        finally:
            came = {name: versions[name] for name in wanted if (folder / name).is_file()}
            write_json(folder.parent / KNOWN, {**there, **came})


def _local(path: Path) -> Place:
    return Place("", "", str(path))


def _originals(place: Place) -> Originals:
    """List the files of a copy of a folder. Raises Changed if a run continued meanwhile."""
    files = files_of(place)
    records: dict[str, list[str]] = {}
    for name in files:
        if FOLDER in name.split("/")[:-1]:
            records.setdefault(f"/{name}".partition(f"/{FOLDER}/")[0].lstrip("/"), []).append(name)
    # A mirror is a folder, never a whole bucket.
    if place.is_root:
        records.pop("", None)

    def newest(top: str) -> Mapping[str, Any]:
        return _newest(place.within(top) if top else place, records[top])

    # One request or more for each mirror, so folders of many runs are read in threads.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        mirrors = dict(zip(records, pool.map(newest, records), strict=True))
    if mirrors:
        # List again, since files that were listed before the records were read may be gone.
        files = files_of(place)
    found = {
        name: Original(place.within(name), file, None)
        for name, file in files.items()
        if not LEFT_OUT & set(name.split("/")) and not _is_beside_a_record(name, mirrors)
    }
    for top, content in mirrors.items():
        start, mirror = (f"{top}/", place.within(top)) if top else ("", place)
        for key, entry in content.get("fixed", {}).items():
            source = place.within(start + key)
            if start + key not in files:
                raise Missing(mirror, source, content.get("id", ""))
            name = start + entry.get("named", entry["place"])
            # For its error: a record must not name a path outside the copy.
            inside(Path(), name, place.shown)
            found[name] = Original(source, files[start + key], entry["sha256"])
    return dict(sorted(found.items()))


def _newest(place: Place, listed: Sequence[str]) -> Mapping[str, Any]:
    """Return the content of the newest record of a mirror, whose keys are `listed`; empty before the first save."""
    record = Ledger(ObjectStore(place.shown, "run")).newest(listed)
    return record.content if record else {}


def _is_beside_a_record(name: str, mirrors: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a file belongs to a checkpoint or is a run's result, and the record of its mirror omits it."""
    parts = name.split("/")
    top = next((top for end in range(len(parts), -1, -1) if (top := "/".join(parts[:end])) in mirrors), None)
    if top is None:
        return False
    within, loose = name.removeprefix(f"{top}/"), mirrors[top].get("loose", {})
    folder = within.rpartition("/")[0]
    is_result = parts[-1] == RESULT and f"{folder}/config.yaml".lstrip("/") in loose
    return within not in loose and (is_result or CHECKPOINTS in folder.split("/"))
