"""Where commands write their results: to this machine, or to a bucket, which gets a result once it is complete.

A folder in a bucket begins with an object `.begun`, which is deleted after the last file. An interrupted folder is
therefore distinguishable from a complete one, and the same command writes it again.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage import access, transfer_in_parts
from nlu.storage.access import stat, try_writing
from nlu.storage.locations import BEGUN, Place, parse_place
from nlu.storage.settle import new_folder, require_new
from nlu.storage.transfer import disk_errors, plan_copy, remove_all, run_copies
from nlu.storage.transfer_in_parts import download_progress

log = logging.getLogger(__name__)


def require_free(out: str | Path, key: str) -> None:
    """Raise UserError, which calls `out` by `key`, unless a command can write a new folder there."""
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        require_new(Path(out), key)
    else:
        _require_absent(place, key, may_have_begun=True)
        try_writing(place)


@contextmanager
def output_folder(out: str | Path, key: str, *, last: str) -> Iterator[Path]:
    """Give a folder to write to, which appears at `out` when the block ends without an error.

    `last` is the file that tells readers that a folder is complete; in a bucket it is written last. Raises UserError if
    something exists there or the bucket rejects the folder; what was written is lost then.
    """
    require_free(out, key)
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        with new_folder(Path(out)) as folder:
            yield folder
        return
    with _temporary_folder() as made:
        yield Path(made)
        _send_folder(Path(made), place, last)


@contextmanager
def output_file(out: str | Path, key: str) -> Iterator[Path]:
    """Give a path to write a file to, which appears at `out` when the block ends without an error.

    Raises UserError if something exists there.
    """
    place = parse_place(str(out), key, writes=True)
    if place.is_local:
        if Path(out).exists():
            raise UserError(f"{key} is {out}, which exists; give another file")
        yield Path(out)
        return
    require_no_object(place, key)
    with _temporary_folder() as folder:
        yield Path(folder, place.name)
        send_file(Path(folder, place.name), place)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    # The result is already in the bucket when the folder is removed.
    return tempfile.TemporaryDirectory(prefix="nlu-out-", ignore_cleanup_errors=True)


def require_no_object(place: Place, key: str) -> None:
    """Raise UserError, which calls the place by `key`, unless a new file can be written to this place in a bucket."""
    if place.names_folder and not place.is_root:
        raise UserError(f"{key} is {place.shown}, a folder; name a file in it")
    _require_absent(place, key)
    try_writing(Place(place.scheme, place.bucket, place.path.rpartition("/")[0]))


def _require_absent(place: Place, key: str, *, may_have_begun: bool = False) -> None:
    """Raise UserError if something exists at a place in a bucket, except an interrupted folder if that is allowed."""
    if place.is_root:
        raise UserError(f"{key} is {place.shown}, a whole bucket; name a folder in it")
    info = stat(place)
    if info is not None and not (may_have_begun and info.is_folder and stat(place.within(BEGUN))):
        raise UserError(f"{key} is {place.shown}, which exists; nothing was written; choose another, or remove it")


def send_file(path: Path, place: Place) -> None:
    """Upload a local file to a bucket; parts of an interrupted upload are kept for the next try."""
    log.info("sending %s, %.1f MB", place.shown, path.stat().st_size / 1e6)
    with disk_errors(place), download_progress(place.name, path.stat().st_size) as advance:
        transfer_in_parts.put(path, place, advance)


def _send_folder(made: Path, place: Place, last: str) -> None:
    plan = plan_copy(Place("", "", str(made)), place, recursive=True, extra=True)
    access.write(place.within(BEGUN), b"")
    # What an earlier, interrupted command left. The mark stays until the end.
    remove_all(place, [extra for extra in plan.extra if extra.name != BEGUN])
    at_end = place.within(last)
    run_copies([item for item in plan.copied if item.target != at_end], place.shown)
    run_copies([item for item in plan.copied if item.target == at_end], place.shown)
    access.delete(place.within(BEGUN))
