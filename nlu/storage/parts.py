"""Large files in parts, in both directions; an interrupted transfer continues with the parts that arrived.

An upload is left unfinished in the bucket. A download leaves `.NAME.DIGEST.part` beside its target; the digest names
the version of the source, so that parts of different versions are never mixed.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Advance, FileStore, Found
from nlu.storage.bucket import Bucket, Changed, Upload, UploadPart
from nlu.storage.files import read_digest, sync_file, sync_folder
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.places import Place

log = logging.getLogger(__name__)

MIB = 1 << 20
PART_BYTES = 16 * MIB
WHOLE_BYTES = 2 * PART_BYTES
"""What is smaller is put in one request."""
MAX_PARTS = 9000
THREADS = 4
IDLE_S = 12 * 3600.0
"""An upload of which no part has come for so long is nobody's any more; a store asks money for its parts."""
OTHERS_PART_BYTES = (5 * MIB, 8 * MIB, 50 * MIB, 100 * MIB)
"""In which other programs upload: boto3, the command of AWS, s3fs."""


def part_bytes_of(size: int) -> int:
    """The size of the parts in which a file is uploaded, so that they are not too many."""
    return max(PART_BYTES, -(-size // MAX_PARTS // MIB) * MIB)


def put_in_parts(bucket: Bucket, path: Path, key: str, advance: Advance, own: set[str] | None = None) -> None:
    """Upload a large file; parts that have arrived of an upload that was cut off stay. Raises DataError as verbs do.

    With `own`, which gains what is begun here, uploads that are not in it are another writer's, and left to it.
    """
    size, width = path.stat().st_size, part_bytes_of(path.stat().st_size)
    count = -(-size // width)
    begun = [] if own is not None and not own else bucket.uploads(key)
    for upload in (*(name for name in reversed(begun) if own is None or name in own), None):
        with suppress(FileNotFoundError):  # another has finished it, or given it up
            name = upload or bucket.begin(key)
            if own is not None:
                own.add(name)
            arrived = {part.number: part for part in bucket.parts(key, name)} if upload else {}
            _complete(bucket, path, key, name, arrived, count, width, advance)
            _clear(bucket, key)
            return
    raise DataError(f"{bucket.scheme}://{bucket.name}/{key}: its upload was ended by another process; try again")


def idle_uploads(bucket: Bucket, prefix: str) -> Iterator[Upload]:
    """Yield the uploads below a prefix that nobody continues: no part of theirs has come for long."""
    oldest_s = time.time() - IDLE_S
    for upload in bucket.uploads_below(prefix):
        if upload.begun_s < oldest_s:
            with suppress(FileNotFoundError):  # ended meanwhile
                if all(part.arrived_s < oldest_s for part in bucket.parts(upload.key, upload.name)):
                    yield upload


def _clear(bucket: Bucket, key: str) -> None:
    """Give up the idle uploads of an object that has just been written; where that is not granted, they stay."""
    try:
        for upload in [upload for upload in idle_uploads(bucket, key) if upload.key == key]:
            log.info("%s://%s/%s: an upload that nobody continues is given up", bucket.scheme, bucket.name, key)
            bucket.abort(upload)
    except (UserError, OSError) as error:
        log.debug("%s", error)


def _complete(
    bucket: Bucket, path: Path, key: str, upload: str, arrived: dict[int, UploadPart], count: int, width: int,
    advance: Advance,
) -> None:  # fmt: skip
    def put(number: int) -> UploadPart:
        with open(path, "rb") as file:
            file.seek((number - 1) * width)
            content = file.read(width)
        part = arrived.get(number)
        if part is None or part.etag.lower() != hashlib.md5(content, usedforsecurity=False).hexdigest():
            part = bucket.put_part(key, upload, number, content)
        advance(len(content))
        return part

    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(put, range(1, count + 1)))
    try:
        bucket.complete(key, upload, parts)
    except FileNotFoundError:
        # The answer to an attempt before this one may have been lost.
        found = bucket.head(key)
        if found is None or not _is_made_of(bucket, key, found, path, sum(part.size for part in parts)):
            raise


def _is_made_of(bucket: Bucket, key: str, found: Found, path: Path, size: int) -> bool:
    """Whether an object is so many bytes of a file: by its etag or, where that does not tell, by reading it."""
    if found.size != size:
        return False
    if found.etag and is_content(path, found.etag):
        return True
    with open(path, "rb") as file:
        for start in range(0, size, PART_BYTES):
            stop = min(start + PART_BYTES, size)
            if bucket.get(key, (start, stop), found.etag) != file.read(stop - start):
                return False
    return True


def joined_etag(parts: list[UploadPart]) -> str:
    """The etag that S3 gives to an object of these parts."""
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def is_content(path: Path, etag: str) -> bool | None:
    """Whether a local file is what an etag stands for; None where that etag does not tell."""
    digest, dash, count = etag.lower().partition("-")
    if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
        return None
    if not dash:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() == digest
    size = path.stat().st_size
    for width in (part_bytes_of(size), *OTHERS_PART_BYTES):
        if count.isdecimal() and -(-size // width) == int(count):
            if joined_etag(_parts_of(path, width)) == etag.lower():
                return True
    return None


def _parts_of(path: Path, width: int) -> list[UploadPart]:
    with open(path, "rb") as file:
        return [
            UploadPart(0, len(chunk), hashlib.md5(chunk, usedforsecurity=False).hexdigest())
            for chunk in iter(lambda: file.read(width), b"")
        ]


def fetch_into(
    store: FileStore, place: Place, found: Found, target: Path, advance: Advance, *, hashed: bool = False
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


def _fill(store: FileStore, place: Place, found: Found, part: Path, advance: Advance, hashed: bool) -> str | None:
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
