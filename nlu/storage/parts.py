"""Large files in parts, in both directions: an interrupted transfer continues with the parts that have arrived.

The bucket keeps the parts of an unfinished upload. A download keeps its bytes beside the target in `.NAME.DIGEST.part`;
DIGEST identifies the version of the source, so parts of different versions are never mixed.
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
from nlu.storage.backend import Advance, Backend, FileInfo
from nlu.storage.bucket import Bucket, Changed, Upload, UploadPart
from nlu.storage.files import read_digest, sync_file, sync_folder
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.places import Place

log = logging.getLogger(__name__)

MIB = 1 << 20
PART_BYTES = 16 * MIB
WHOLE_BYTES = 2 * PART_BYTES
"""a smaller file is written in one request"""
MAX_PARTS = 9000
THREADS = 4
IDLE_S = 12 * 3600.0
"""after this time without a new part an upload counts as abandoned; the service charges for its parts"""
OTHERS_PART_BYTES = (5 * MIB, 8 * MIB, 50 * MIB, 100 * MIB)
"""part sizes of other programs: boto3, the AWS command line, s3fs"""


def part_bytes_of(size: int) -> int:
    """Return the size of the parts of a file of `size` bytes, large enough that there are at most MAX_PARTS."""
    return max(PART_BYTES, -(-size // MAX_PARTS // MIB) * MIB)


def put_in_parts(bucket: Bucket, path: Path, key: str, advance: Advance, own: set[str] | None = None) -> None:
    """Upload a large file, continuing an unfinished upload of the same key if there is one.

    With `own`, only uploads whose names are in it are continued, since others belong to other writers; the name of a
    new upload is added to it. Raises DataError if another process ended the upload, and what the methods of `Bucket`
    raise.
    """
    # Nothing of this process can be continued then, which saves a request.
    begun = [] if own is not None and not own else bucket.uploads(key)
    # The newest first; None at the end begins a new one.
    for upload in (*(name for name in reversed(begun) if own is None or name in own), None):
        with suppress(FileNotFoundError):  # another process has completed or aborted it
            name = upload or bucket.begin(key)
            if own is not None:
                own.add(name)
            arrived = {part.number: part for part in bucket.parts(key, name)} if upload else {}
            _complete(bucket, path, key, name, arrived, advance)
            _abort_idle(bucket, key)
            return
    raise DataError(f"{bucket.scheme}://{bucket.name}/{key}: its upload was ended by another process; try again")


def idle_uploads(bucket: Bucket, prefix: str) -> Iterator[Upload]:
    """Yield the abandoned uploads of keys with this prefix: no part has arrived for IDLE_S seconds."""
    oldest_s = time.time() - IDLE_S
    for upload in bucket.uploads_below(prefix):
        if upload.begun_s < oldest_s:
            with suppress(FileNotFoundError):  # it ended meanwhile
                if all(part.arrived_s < oldest_s for part in bucket.parts(upload.key, upload.name)):
                    yield upload


def _abort_idle(bucket: Bucket, key: str) -> None:
    """Abort the abandoned uploads of an object that was just written; they stay if the permission is missing."""
    try:
        for upload in [upload for upload in idle_uploads(bucket, key) if upload.key == key]:
            log.info("%s://%s/%s: an abandoned upload is aborted", bucket.scheme, bucket.name, key)
            bucket.abort(upload)
    except (UserError, OSError) as error:
        log.debug("%s", error)


def _complete(
    bucket: Bucket, path: Path, key: str, upload: str, arrived: dict[int, UploadPart], advance: Advance
) -> None:
    size = path.stat().st_size
    width = part_bytes_of(size)

    def put(number: int) -> UploadPart:
        with open(path, "rb") as file:
            file.seek((number - 1) * width)
            content = file.read(width)
        # S3 and OSS use the MD5 of a part as its etag. If encryption changes the etag, the part is only sent again.
        part = arrived.get(number)
        if part is None or part.etag.lower() != hashlib.md5(content, usedforsecurity=False).hexdigest():
            part = bucket.put_part(key, upload, number, content)
        advance(len(content))
        return part

    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(put, range(1, -(-size // width) + 1)))
    try:
        bucket.complete(key, upload, parts)
    except FileNotFoundError:
        # The response to an earlier try may have been lost.
        info = bucket.head(key)
        # An upload that is gone was completed or aborted: only the object itself tells which.
        if info is None or not _has_content(bucket, key, info, path, sum(part.size for part in parts)):
            raise


def _has_content(bucket: Bucket, key: str, info: FileInfo, path: Path, size: int) -> bool:
    """Return whether an object has the first `size` bytes of a file, by its etag or else by reading it."""
    if info.size != size:
        return False
    if info.etag and is_content(path, info.etag):
        return True
    with open(path, "rb") as file:
        for start in range(0, size, PART_BYTES):
            stop = min(start + PART_BYTES, size)
            if bucket.get(key, (start, stop), info.etag) != file.read(stop - start):
                return False
    return True


def is_content(path: Path, etag: str) -> bool | None:
    """Return whether a local file has the content of an etag; None if the etag does not tell."""
    digest, dash, count = etag.lower().partition("-")
    if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
        return None
    if not dash:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest() == digest
    size = path.stat().st_size
    for width in (part_bytes_of(size), *OTHERS_PART_BYTES):
        if count.isdecimal() and -(-size // width) == int(count) and multipart_etag(path, width) == etag.lower():
            return True
    return None


def multipart_etag(path: Path, width: int) -> str:
    """Return the etag that S3 gives to a file that is uploaded in parts of `width` bytes."""
    with open(path, "rb") as file:
        digests = [hashlib.md5(part, usedforsecurity=False).digest() for part in iter(lambda: file.read(width), b"")]
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def fetch_into(
    backend: Backend, place: Place, info: FileInfo, target: Path, advance: Advance, *, hashed: bool = False
) -> str | None:
    """Download the file that `info` describes to a local path, atomically, continuing an interrupted download.

    With `hashed` returns its sha256, computed during the download. Raises Changed if the source changes meanwhile,
    UserError if another process downloads to the same path.
    """
    version = hashlib.sha256(repr((place.shown, info.size, info.etag, info.modified_s)).encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{version}.part")
    try:
        with hold_lock(part, wait_s=0, optional=True):
            digest = _fill(backend, place, info, part, advance, hashed)
            # Before the rename: a file under its final name has its final time.
            if info.modified_s is not None:
                os.utime(part, (info.modified_s, info.modified_s))
            os.replace(part, target)
    except Locked as error:
        raise UserError(f"{target} is being written by another process; wait for it") from error
    sync_folder(target.parent)
    return digest


def _fill(backend: Backend, place: Place, info: FileInfo, part: Path, advance: Advance, hashed: bool) -> str | None:
    if info.size is None:
        backend.read_whole(place, part)
        sync_file(part)
        advance(part.stat().st_size)
        return read_digest(part) if hashed else None
    size, digest = info.size, hashlib.sha256()
    # The lock has created the file. Its length says which bytes have arrived, so parts are written in order.
    with open(part, "r+b") as file, ThreadPoolExecutor(THREADS) as pool:
        # A longer file cannot be of this version.
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
            # At most this many parts are in memory.
            while len(waiting) < THREADS and (start := next(starts, None)) is not None:
                waiting.append(pool.submit(backend.read, place, start, min(start + PART_BYTES, size), info))
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
    if begun and info.etag and is_content(part, info.etag) is False:
        # The bytes of an interrupted download may not have reached the disk.
        # The file is kept, and only emptied, because it holds the lock.
        part.write_bytes(b"")
        advance(-size)
        return _fill(backend, place, info, part, advance, hashed)
    return digest.hexdigest() if hashed else None
