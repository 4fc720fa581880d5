"""Where commands write what they make: on this machine, or in an object store, which gets it once all of it is made.

A folder in an object store begins with an object `.begun` and loses it at the very end, behind its last file: so what
was broken off is told from what is whole, and is written anew by the same command.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.backend import download_progress
from nlu.storage.objects import writable_store_of
from nlu.storage.places import Place, parse_place
from nlu.storage.settle import new_folder, require_new
from nlu.storage.transfer import disk_errors, plan_copy, remove_all, run_copies

log = logging.getLogger(__name__)

BEGUN = ".begun"


def require_free(out: str | Path, key: str) -> None:
    """Raise UserError, calling it `key`, where a command that writes a new folder would find something there."""
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        require_new(Path(out), key)
        return
    _require_not_root(place, key)
    store = writable_store_of(place)
    found = store.look(place)
    if found is not None and not (found.is_folder and store.look(place.within(BEGUN))):
        raise UserError(f"{key} is {place.shown}, which exists; nothing was written; choose another, or remove it")
    store.try_writing(place)


@contextmanager
def output_folder(out: str | Path, key: str, *, last: str) -> Iterator[Path]:
    """Give a folder in which to write what is to lie at `out`; it gets there when the block ends well.

    `last` is the file by which readers know that a folder is whole; in an object store it comes last. Raises UserError
    where something lies there, or the store does not take it; what was made is lost then.
    """
    require_free(out, key)
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        with new_folder(Path(out)) as folder:
            yield folder
        return
    made = Path(tempfile.mkdtemp(prefix="nlu-out-"))
    try:
        yield made
        _send_folder(made, place, last)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def output_file(out: str | Path, key: str) -> Iterator[Path]:
    """Give a path to which to write the file that is to lie at `out`; it gets there, whole, when the block ends well.

    Raises UserError where something lies there.
    """
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        if Path(out).exists():
            raise UserError(f"{key} is {out}, which exists; give another file")
        yield Path(out)
        return
    require_no_object(place, key)
    with tempfile.TemporaryDirectory(prefix="nlu-out-") as folder:
        yield Path(folder, place.name)
        send_file(Path(folder, place.name), place)


@contextmanager
def output_files(out: str | Path, key: str) -> Iterator[Path]:
    """Give a folder in which to write files that are to lie in the folder `out`, beside what is there already.

    Raises UserError where one of the same name lies there in a store; on this machine whoever writes them sees to that.
    """
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="nlu-out-") as folder:
        yield Path(folder)
        paths = sorted(Path(folder).iterdir())
        for path in paths:
            require_no_object(place.within(path.name), key)
        for path in paths:
            send_file(path, place.within(path.name))


def require_no_object(place: Place, key: str) -> None:
    """Raise UserError where something lies at a place in an object store, it is a folder's, or nothing can be written
    there."""
    _require_not_root(place, key)
    if place.names_folder:
        raise UserError(f"{key} is {place.shown}, a folder; name a file in it")
    store = writable_store_of(place)
    if store.look(place) is not None:
        raise UserError(f"{key} is {place.shown}, which exists; nothing was written; choose another, or remove it")
    store.try_writing(Place(place.scheme, place.bucket, place.path.rpartition("/")[0]))


def send_file(path: Path, place: Place) -> None:
    """Have a local file lie in an object store; of an upload that was cut off, the parts that arrived stay."""
    log.info("sending %s, %.1f MB", place.shown, path.stat().st_size / 1e6)
    with disk_errors(place), download_progress(place.name, path.stat().st_size) as advance:
        writable_store_of(place).put(path, place, advance)


def _send_folder(made: Path, place: Place, last: str) -> None:
    store = writable_store_of(place)
    plan = plan_copy(Place("", "", str(made)), place, recursive=True, extra=True)
    (made / BEGUN).touch()
    store.put(made / BEGUN, place.within(BEGUN), lambda count: None)
    (made / BEGUN).unlink()
    remove_all(place, [extra for extra in plan.extra if extra.name != BEGUN])
    at_end = place.within(last)
    run_copies([item for item in plan.copied if item.target != at_end], place.shown)
    run_copies([item for item in plan.copied if item.target == at_end], place.shown)
    store.remove(place.within(BEGUN))


def _require_not_root(place: Place, key: str) -> None:
    if place.is_root:
        raise UserError(f"{key} is {place.shown}, a whole bucket; name a folder in it")
