"""A file of any store onto a disk of this machine, whole or not at all.

A download that was cut off continues: what has come lies in `.NAME.DIGEST.part` beside the target. The digest names
the version of the source, so that versions never mix.
"""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.bucket import Changed
from nlu.storage.files import read_digest, sync_file, sync_folder
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.parts import PART_BYTES, THREADS, is_content
from nlu.storage.places import Place
from nlu.storage.store import Advance, Found, Store


def fetch_into(
    store: Store, place: Place, found: Found, target: Path, advance: Advance, *, hashed: bool = False
) -> str | None:
    """Have the file that was found lie at a local path, whole; what came of the same version before is not read again.

    With `hashed` returns its sha256, which is taken while it comes. Raises Changed where it changes meanwhile,
    UserError where another process does the same.
    """
    version = hashlib.sha256(repr((place.shown, found.size, found.etag, found.modified_s)).encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{version}.part")
    try:
        with hold_lock(part, wait_s=0, optional=True):
            digest = _fill(store, place, found, part, advance, hashed)
            if found.modified_s is not None:
                os.utime(part, (found.modified_s, found.modified_s))
            os.replace(part, target)
    except Locked as error:
        raise UserError(f"{target} is being written by another process; wait for it") from error
    sync_folder(target.parent)
    return digest


def _fill(store: Store, place: Place, found: Found, part: Path, advance: Advance, hashed: bool) -> str | None:
    if found.size is None:
        store.read_whole(place, part)
        sync_file(part)
        advance(part.stat().st_size)
        return read_digest(part) if hashed else None
    size, digest = found.size, hashlib.sha256()
    with open(part, "r+b") as file, ThreadPoolExecutor(THREADS) as pool:
        begun = min(file.seek(0, os.SEEK_END), size)
        file.truncate(begun)
        if hashed:
            file.seek(0)
            while chunk := file.read(PART_BYTES):
                digest.update(chunk)
        file.seek(begun)
        advance(begun)
        starts = iter(range(begun, size, PART_BYTES))
        waiting: list[Future[bytes]] = []
        while True:
            while len(waiting) < THREADS and (start := next(starts, None)) is not None:
                waiting.append(pool.submit(store.read, place, start, min(start + PART_BYTES, size), found))
            if not waiting:
                break
            try:
                content = waiting.pop(0).result()
            except FileNotFoundError as error:
                raise Changed(f"{place.shown} was removed while it was read; try again") from error
            file.write(content)
            if hashed:
                digest.update(content)
            advance(len(content))
        file.flush()
        os.fsync(file.fileno())
    if begun and found.etag and is_content(part, found.etag) is False:
        # What an interrupted copy left need not have reached the disk.
        part.write_bytes(b"")
        advance(-size)
        return _fill(store, place, found, part, advance, hashed)
    return digest.hexdigest() if hashed else None
