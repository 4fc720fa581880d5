"""Copies on this machine of folders of runs in an object store: what is read of them, and no more.

A copy is brought up to date each time it is asked for: what is there as the store has it stays. First come the records
of runs, whatever is no weights; the weights of a checkpoint come when it is known which one is meant.

Of a run that is still being mirrored the copy is what the newest record of its mirror names (`nlu.storage.ledger`): its
checkpoints under the names that they have in the run's folder, each file held against its sha256.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.words import path_text, show_as
from nlu.storage.backend import Found
from nlu.storage.bucket import Changed
from nlu.storage.cache import UNWRITABLE, cache_dir, text_digest
from nlu.storage.files import inside, read_json, write_json
from nlu.storage.ledger import FOLDER, Ledger
from nlu.storage.locks import hold_lock
from nlu.storage.objects import ObjectStore, store_of
from nlu.storage.places import Place, is_object, parse_place
from nlu.storage.settle import remove
from nlu.storage.temporary import Pauses
from nlu.storage.transfer import AT_ONCE, Item, run_copies

CHECKPOINTS, RESULT = "checkpoints", "result.json"
LEFT_OUT = frozenset({FOLDER, ".begun"})
KNOWN, LOCK = "known.json", "lock"
AGAIN_S = Pauses(0.25, 1.0, 9)
"""after how long a run is read again that was written while it was read"""


@dataclass(frozen=True)
class Original:
    """A file of the store that a copy is made of."""

    place: Place
    found: Found
    sha256: str | None
    """what a record says of its content"""

    @property
    def version(self) -> str:
        told = self.sha256 or repr((self.found.size, self.found.etag, self.found.modified_s))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


Originals = Mapping[str, Original]
"""by the path within the copy"""


@dataclass(frozen=True)
class Copied:
    """What a folder of this process is a copy of, as the store was listed last."""

    place: Place
    files: Originals


class Missing(Changed):
    """The newest record of a mirror names what the store does not have: the run went on, or the object is gone."""

    def __init__(self, mirror: Place, source: Place, save: str):
        super().__init__(f"{source.shown} was removed while it was read; try again")
        self.mirror, self.source, self.save = mirror, source, save


_copies: dict[Path, Copied] = {}


def records_of(reference: str | Path, what: str) -> Path:
    """A folder of runs that a command is to read: where it lies here, or a copy without weights.

    Raises DataError where the store has none, UserError where it cannot be asked.
    """
    if not is_object(reference):
        return Path(reference)
    place = parse_place(str(reference), what)
    found = store_of(place).look(place)
    if found is None:
        raise DataError(f"{what} is {place.shown}, which does not exist; correct it")
    if not found.is_folder:
        raise DataError(f"{what} is {place.shown}, which is a file; name a folder of runs")
    folder = cache_dir() / "copies" / text_digest(place.shown) / (place.name or place.bucket)
    _bring_newest(place, folder, _is_record)
    show_as(folder, place.shown)
    return folder


def all_records_of(references: Sequence[str | Path], what: str) -> list[Path]:
    """The same of several folders."""
    return [records_of(reference, what) for reference in references]


def complete(folder: Path) -> Path:
    """Have all files of a folder here, such as a checkpoint, if it lies in a copy; returns the folder."""
    for top, copied in list(_copies.items()):
        if not folder.is_relative_to(top):
            continue

        def is_wanted(name: str, top: Path = top) -> bool:
            return (top / name).is_relative_to(folder)

        try:
            _bring(top, copied, is_wanted, is_newest=False)
        except Changed:
            # The run went on: what was listed is not there any more, or another process brought what is newer.
            _bring_newest(copied.place, top, lambda name: _is_record(name) or is_wanted(name))
    return folder


def place_text(folder: Path) -> str:
    """A folder as it was given, or the place in the store that it is a copy of."""
    return path_text(folder) if any(folder.is_relative_to(top) for top in _copies) else str(folder)


def _is_record(name: str) -> bool:
    return CHECKPOINTS not in name.split("/")[:-1] or name.endswith(".json")


def _bring_newest(place: Place, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    """Have the wanted files in the folder as the store has them at one moment."""
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
                if before and missing and before.save == missing.save:
                    raise DataError(
                        f"{missing.mirror.shown} is damaged: its newest record names {missing.source.shown}, which the "
                        "store does not have; restore that object"
                    ) from error
                raise
            time.sleep(pause_s)


def _bring(folder: Path, copied: Copied, is_wanted: Callable[[str], bool], *, is_newest: bool) -> None:
    """Have the wanted ones of the files in the folder; what the store does not have, or not so, goes.

    Not `is_newest`: the store was listed a while ago. Then nothing goes, since other processes keep the folder up to
    date too, and Changed is raised where something wanted differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / LOCK, wait_s=float("inf"), optional=True, what=str(folder)):
        known = read_json(folder.parent / KNOWN) or {}
        there = {name: known[name] for name in known if (folder / name).is_file()}
        versions = {name: file.version for name, file in copied.files.items()}
        differing = [name for name in there if versions.get(name) != there[name]]
        if not is_newest and any(map(is_wanted, differing)):
            raise Changed(f"{copied.place.shown} changed while it was read; try again")
        for name in differing if is_newest else []:
            remove(folder / name)
            del there[name]
        wanted = {name: file for name, file in copied.files.items() if is_wanted(name) and name not in there}
        for name in wanted:
            (folder / name).unlink(missing_ok=True)
        # What is being written is not known: were this process killed, it would come anew.
        write_json(folder.parent / KNOWN, there)
        try:
            run_copies(
                [
                    Item(file.place, file.found, _local(folder / name), None, file.sha256)
                    for name, file in wanted.items()
                ],
                copied.place.shown,
            )
        except UserError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in UNWRITABLE:
                raise UserError(
                    f"{copied.place.shown} cannot be written to the cache {cache_dir()}: {error.__cause__.strerror}; "
                    "free some space or set the environment variable NLU_CACHE to another folder"
                ) from error
            raise
        finally:
            came = {name: versions[name] for name in wanted if (folder / name).is_file()}
            write_json(folder.parent / KNOWN, {**there, **came})


def _local(path: Path) -> Place:
    return Place("", "", str(path))


def _originals(place: Place) -> Originals:
    """List what a copy of a folder is made of. Raises Changed where a run went on meanwhile."""
    files = store_of(place).files(place)
    records: dict[str, list[str]] = {}
    for name in files:
        if FOLDER in name.split("/")[:-1]:
            records.setdefault(f"/{name}".partition(f"/{FOLDER}/")[0].lstrip("/"), []).append(name)
    if place.is_root:
        records.pop("", None)

    def newest(top: str) -> Mapping[str, Any]:
        return _newest(place.within(top) if top else place, records[top])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        mirrors = dict(zip(records, pool.map(newest, records), strict=True))
    if mirrors:
        # Listed again, since of what was listed before the records some may have gone.
        files = store_of(place).files(place)
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
            inside(Path(), name, place.shown)
            found[name] = Original(source, files[start + key], entry["sha256"])
    return dict(sorted(found.items()))


def _newest(place: Place, listed: Sequence[str]) -> Mapping[str, Any]:
    """What the newest record of a mirror says of its folder, its keys being listed; nothing before the first save."""
    record = Ledger(ObjectStore(place.shown, "run")).newest(listed)
    return record.content if record else {}


def _is_beside_a_record(name: str, mirrors: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a file is a checkpoint's or a run's result, and lies in a mirror whose record does not name it."""
    parts = name.split("/")
    top = next((top for end in range(len(parts), -1, -1) if (top := "/".join(parts[:end])) in mirrors), None)
    if top is None:
        return False
    within, loose = name.removeprefix(f"{top}/"), mirrors[top].get("loose", {})
    folder = within.rpartition("/")[0]
    is_result = parts[-1] == RESULT and f"{folder}/config.yaml".lstrip("/") in loose
    return within not in loose and (is_result or CHECKPOINTS in folder.split("/"))
