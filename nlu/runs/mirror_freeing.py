"""Removing the checkpoints of an ended run from its mirror, as `nlu.runs.freeing` does in its folder."""

import logging
import uuid
from pathlib import PurePosixPath

from nlu.runs.freeing import BEST, CHECKPOINTS
from nlu.runs.mirrored import mirrors_below
from nlu.storage.heartbeat import has_ended
from nlu.storage.ledger import RELEASE, SAVE, Ledger, TakenOver
from nlu.storage.objects import ObjectStore
from nlu.storage.refusals import Unreachable

log = logging.getLogger(__name__)

_unreleased: dict[str, Ledger] = {}
"""claims of this process that the service did not let it release, by mirror; the next call releases them first"""


def free_mirror(url: str, *, keeps_best: bool) -> bool:
    """Remove the checkpoints of a run that is never continued, except the best ones with `keeps_best`.

    Returns False, without a change, if a process on another machine has not released the mirror. It can be repeated
    after a kill. Raises TakenOver if another process claims the mirror meanwhile, Unreachable if the service does not
    respond.
    """
    if (left := _unreleased.pop(url, None)) is not None:
        _release(url, left)
    store = ObjectStore(url, "mirror")
    ledger = Ledger(store)
    newest = ledger.newest()
    if newest is None or "fixed" not in newest.content:
        return True
    if newest.kind != RELEASE and not has_ended(newest.holder):
        return False
    fixed = {key: entry for key, entry in newest.content["fixed"].items() if keeps_best and _is_best(entry["named"])}
    keys = list(store.list())
    below = mirrors_below(keys)
    gone = [key for key in keys if CHECKPOINTS in key.split("/") and key not in fixed and not key.startswith(below)]
    if not gone:
        return True
    try:
        ledger.claim(log.debug, newest)
    except Unreachable:
        # The response may be lost, and not the claim.
        _unreleased[url] = ledger
        raise
    try:
        # Only what the newest record names counts, so the record comes before the deletions.
        own_id = uuid.uuid4().hex
        ledger.append(SAVE, {**newest.content, "id": own_id, "fixed": fixed}, own_id)
        for key in gone:
            ledger.require_held()
            store.delete(key)
    finally:
        _release(url, ledger)
    return True


def _release(url: str, ledger: Ledger) -> None:
    try:
        # It may have a record whose response was lost.
        ledger.require_held()
        ledger.release()
    except TakenOver:
        # Another process holds the mirror, and waits for nothing.
        ledger.stop_beating()
    except Unreachable:
        _unreleased[url] = ledger
        ledger.stop_beating()
        raise


def _is_best(place: str) -> bool:
    """Return whether a path in a run folder is that of a file of a best checkpoint."""
    return any(BEST.fullmatch(part) for part in PurePosixPath(place).parts[:-1])
