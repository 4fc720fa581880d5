"""Removing the checkpoints of an ended run from its mirror, as `nlu.runs.freeing` does in its folder."""

from nlu.runs.freeing import BEST, CHECKPOINTS
from nlu.runs.mirrored import KEY
from nlu.storage.objects import ObjectStore
from nlu.storage.pointer import Pointers, TakenOver


def free_mirror(url: str, *, keeps_best: bool) -> bool:
    """Remove the checkpoints of a run that is never continued, except the best ones with `keeps_best`.

    Returns False, without a change, if another process writes to the mirror or did not release it. It can be repeated
    after a kill. Raises Unreachable if the service does not respond.
    """
    pointers = Pointers(ObjectStore(url, KEY))
    there = pointers.newest()
    if there is None:
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
