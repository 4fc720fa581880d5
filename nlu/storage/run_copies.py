"""Copies, on this machine, of run folders in a bucket, of the files that a command reads.

A copy is updated each time it is requested; files that already match the bucket stay. The records of runs, which are
all files except weights, are copied first; the weights of a checkpoint are copied when it is known which one is used.

Of a mirror, whose run may go on, a copy has what its newest pointer names (`nlu.storage.pointer`), all of one moment.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nlu.config.addresses import is_object
from nlu.config.errors import DataError, UserError
from nlu.config.sentences import path_text, show_as
from nlu.storage.cache import cache_dir, text_digest, unwritable
from nlu.storage.files import inside, read_json, write_json
from nlu.storage.locks import hold_lock
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import AT_ONCE, FOLDER, Pointers, Stored, fetch
from nlu.storage.refusals import Changed, Pauses
from nlu.storage.settle import remove

CHECKPOINTS = "checkpoints"
KNOWN, LOCK = "known.json", "lock"
AGAIN_S = Pauses(0.25, 1.0, 9)
"""before a run is read again that was written while it was read"""

_copies: dict[Path, ObjectStore] = {}
"""the folder in a bucket that a folder here is a copy of"""


def records_of(reference: str | Path, what: str) -> Path:
    """Return a local folder of the runs at a reference: the folder itself, or a copy without weights.

    Raises DataError if the bucket has no such folder, UserError if the service does not respond or rejects the request.
    """
    if not is_object(reference):
        return Path(reference)
    store = ObjectStore(str(reference), what)
    folder = cache_dir() / "copies" / text_digest(store.shown) / store.shown.rpartition("/")[2]
    _update(store, folder, _is_record)
    _copies[folder] = store
    show_as(folder, store.shown)
    return folder


def complete(folder: Path) -> Path:
    """Copy all files of a folder, such as a checkpoint, if it is in a copy; returns the folder."""
    for top, store in _copies.items():
        if folder.is_relative_to(top):

            def is_wanted(name: str, top: Path = top) -> bool:
                return _is_record(name) or (top / name).is_relative_to(folder)

            _update(store, top, is_wanted)
    return folder


def place_text(folder: Path) -> str:
    """Return a folder as the user wrote it, or the place in the bucket that it is a copy of."""
    return path_text(folder) if any(folder.is_relative_to(top) for top in _copies) else str(folder)


def _is_record(name: str) -> bool:
    return CHECKPOINTS not in name.split("/")[:-1] or name.endswith(".json")


def _update(store: ObjectStore, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    """Copy the wanted files into the folder, and remove files that the bucket does not have in this version."""
    folder.mkdir(parents=True, exist_ok=True)
    # Lock and list are beside the copy: in it, they would look like files of the bucket.
    with hold_lock(folder.parent / LOCK, wait_s=float("inf"), optional=True, what=str(folder)):
        for pause_s in (*AGAIN_S, None):
            try:
                _bring(store, folder, is_wanted)
                return
            except (FileNotFoundError, Changed) as error:
                if pause_s is None:
                    raise DataError(
                        f"{store.shown} lacks a file that it should have ({error}); restore that object, or try again "
                        "when its run saves less often"
                    ) from error
                time.sleep(pause_s)
            except UserError as error:
                if refusal := unwritable(store.shown, error.__cause__):
                    raise refusal from error
                raise


def _bring(store: ObjectStore, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    files = _files(store)
    known = read_json(folder.parent / KNOWN) or {}
    versions = {name: version for name, (_, version) in files.items()}
    there = {name: known[name] for name in known if (folder / name).is_file()}
    for name in [name for name in there if versions.get(name) != there[name]]:
        remove(folder / name)
        del there[name]
    wanted = {folder / name: file for name, (file, _) in files.items() if is_wanted(name) and name not in there}
    # A leftover of a killed process must not count as copied below if its download fails.
    for path in wanted:
        path.unlink(missing_ok=True)
    # A file that is being written is not in KNOWN, so it is copied again if this process is killed.
    write_json(folder.parent / KNOWN, there)
    try:
        fetch(store, wanted)
    finally:
        came = [path.relative_to(folder).as_posix() for path in wanted if path.is_file()]
        write_json(folder.parent / KNOWN, {**there, **{name: versions[name] for name in came}})


def _files(store: ObjectStore) -> Mapping[str, tuple[Stored, str]]:
    """Return the objects of a copy by path, each with what differs if its content does."""
    listed = store.list()
    if not listed:
        what = store.reference.what
        raise DataError(f"{what} is {store.shown}, which does not exist or is not a folder of runs; correct it")
    mirrors: dict[str, list[str]] = {}
    for key in listed:
        if (top := _mirror_of(key)) is not None:
            mirrors.setdefault(top, []).append(key)
    found = {}
    for key, info in listed.items():
        # What is in a mirror counts if its pointer names it.
        if not key.startswith(tuple(mirrors)):
            inside(Path(), key, store.shown)
            found[key] = Stored(key, info.size or 0, ""), repr((info.size, info.etag, info.modified_s))
    # A request or two for each mirror, so folders of many runs are read in threads.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for top, files in zip(mirrors, pool.map(lambda top: _newest(store, top, mirrors[top]), mirrors), strict=True):
            for place, file in files.items():
                # For its error: a pointer must not name a path outside the copy.
                inside(Path(), top + place, store.shown)
                found[top + place] = Stored(top + file.key, file.size, file.sha256), file.sha256
    return {name: (file, hashlib.sha256(text.encode()).hexdigest()[:16]) for name, (file, text) in found.items()}


def _newest(store: ObjectStore, top: str, pointers: Sequence[str]) -> Mapping[str, Stored]:
    """Return what the newest pointer of a mirror names; nothing before the first save."""
    mirror = ObjectStore(f"{store.shown}/{top}".rstrip("/"), store.reference.what)
    found = Pointers(mirror).newest(key for key in pointers if f"{FOLDER}/" in key)
    return {} if found is None else found.files


def _mirror_of(key: str) -> str | None:
    """Return the mirror whose pointer has this key; "" or a path with a slash."""
    top, is_there, _ = f"/{key}".partition(f"/{FOLDER}/")
    return f"{top}/"[1:] if is_there else None
