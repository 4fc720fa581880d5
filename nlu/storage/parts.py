"""Large files in parts, in both directions: an interrupted transfer continues with the parts that have arrived.

A bucket of S3 keeps the parts of an unfinished upload; for OSS, oss2 notes them on this machine. A download keeps its
bytes beside the target in `.NAME.DIGEST.part`; DIGEST identifies the version of the source, so parts of different
versions are never mixed.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack

from nlu.config.errors import DataError, UserError
from nlu.storage import access
from nlu.storage.access import Asking, FileInfo
from nlu.storage.cache import cache_dir
from nlu.storage.files import read_digest, replacing, sync_file, sync_folder
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.places import Place
from nlu.storage.progress import Advance
from nlu.storage.refusals import Changed, Refused, asked

MIB = 1 << 20
PART_BYTES = 16 * MIB
WHOLE_BYTES = 2 * PART_BYTES
"""a smaller file is written in one request"""
MAX_PARTS = 9000
THREADS = 4


def part_bytes_of(size: int) -> int:
    """Return the size of the parts of a file of `size` bytes, large enough that there are at most MAX_PARTS."""
    return max(PART_BYTES, -(-size // MAX_PARTS // MIB) * MIB)


def put(path: Path, place: Place, advance: Advance, **asking: Unpack[Asking]) -> None:
    """Write a local file to a place, complete or not at all; an interrupted upload of a large file is continued."""
    access.require_writable(place)
    size = path.stat().st_size
    if place.is_local:
        with open(path, "rb") as source, replacing(place.path) as target:
            while chunk := source.read(MIB):
                target.write(chunk)
                advance(len(chunk))
        # The copy keeps the time of modification, by which the next transfer recognizes it. A kill before this line
        # costs only one more copy.
        shutil.copystat(path, place.path)
    elif size < WHOLE_BYTES:
        access.write(place, path.read_bytes(), **asking)
        advance(size)
    elif place.scheme == "oss":
        _put_by_oss(path, place, advance, asking)
    else:
        _put_in_parts(path, place, advance, asking)


def _put_by_oss(path: Path, place: Place, advance: Advance, asking: Asking) -> None:
    import oss2

    bucket, sent = filesystem_of(place)[0].bucket(place.bucket), 0

    def progress(so_far: int, size: int | None) -> None:
        nonlocal sent
        advance(so_far - sent)
        sent = so_far

    def verb() -> None:
        oss2.resumable_upload(
            bucket, place.path, str(path), store=oss2.ResumableStore(str(cache_dir()), "uploads"),
            multipart_threshold=WHOLE_BYTES, part_size=part_bytes_of(path.stat().st_size), num_threads=THREADS,
            progress_callback=progress,
        )  # fmt: skip

    asked(place, "written", verb, **asking)


def _put_in_parts(path: Path, place: Place, advance: Advance, asking: Asking) -> None:
    """Upload a large file to S3, continuing the newest unfinished upload of this key.

    S3 joins parts by the etags that this process gives, so the parts of two writers never form one object: the later
    writer is refused, and begins an upload of its own.
    """
    filesystem, _ = filesystem_of(place)

    def call(method: str, **options: Any) -> Any:
        return asked(place, "written", lambda: filesystem.call_s3(method, Bucket=place.bucket, **options), **asking)

    with suppress(FileNotFoundError, Refused):  # another process has ended it, or it may not be continued
        begun = call("list_multipart_uploads", Prefix=place.path).get("Uploads", [])
        exact = [each for each in begun if each["Key"] == place.path]
        if exact:
            named = {"Key": place.path, "UploadId": max(exact, key=lambda each: each["Initiated"])["UploadId"]}
            # The answer has 1,000 parts at most; others are sent again.
            there = call("list_parts", **named).get("Parts", [])
            _send_parts(path, place, named, {part["PartNumber"]: part["ETag"] for part in there}, call, advance)
            return
    named = {"Key": place.path, "UploadId": call("create_multipart_upload", Key=place.path)["UploadId"]}
    try:
        _send_parts(path, place, named, {}, call, advance)
    except FileNotFoundError as error:
        raise DataError(f"{place.shown}: its upload was ended by another process; try again") from error


def _send_parts(
    path: Path, place: Place, named: dict[str, str], there: dict[int, str], call: Callable[..., Any], advance: Advance
) -> None:
    size = path.stat().st_size
    width = part_bytes_of(size)

    def send(number: int) -> str:
        with open(path, "rb") as file:
            file.seek((number - 1) * width)
            content = file.read(width)
        # S3 uses the MD5 of a part as its etag. If encryption changes the etag, the part is only sent again.
        etag = f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
        if there.get(number) != etag:
            etag = call("upload_part", PartNumber=number, Body=content, **named)["ETag"]
        advance(len(content))
        return etag

    with ThreadPoolExecutor(THREADS) as pool:
        etags = list(pool.map(send, range(1, -(-size // width) + 1)))
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, start=1)]
    try:
        call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **named)
    except FileNotFoundError:
        # The answer to an earlier try may have been lost: then the object is there.
        info = access.stat(place)
        if info is None or info.etag != joined_etag([bytes.fromhex(etag.strip('"')) for etag in etags]):
            raise


def joined_etag(digests: Sequence[bytes]) -> str:
    """Return the etag that S3 gives to an object of parts with these MD5 digests."""
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def is_content(path: Path, etag: str) -> bool | None:
    """Return whether a local file has the content of an etag; None if the etag does not tell."""
    digest, dash, _ = etag.lower().partition("-")
    if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
        return None
    with open(path, "rb") as file:
        if not dash:
            return hashlib.file_digest(file, "md5").hexdigest() == digest
        width = part_bytes_of(path.stat().st_size)
        parts = iter(lambda: file.read(width), b"")
        # Other programs upload in other parts.
        own = joined_etag([hashlib.md5(part, usedforsecurity=False).digest() for part in parts])
        return True if own == etag.lower() else None


def fetch_into(place: Place, info: FileInfo, target: Path, advance: Advance, *, hashed: bool = False) -> str | None:
    """Download the file that `info` describes to a local path, atomically, continuing an interrupted download.

    With `hashed` returns its sha256, computed during the download. Raises Changed if the source changes meanwhile,
    UserError if another process downloads to the same path.
    """
    version = hashlib.sha256(repr((place.shown, info.size, info.etag, info.modified_s)).encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{version}.part")
    try:
        with hold_lock(part, wait_s=0, optional=True):
            digest = _fill(place, info, part, advance, hashed)
            # Before the rename: a file under its final name has its final time.
            if info.modified_s is not None:
                os.utime(part, (info.modified_s, info.modified_s))
            os.replace(part, target)
    except Locked as error:
        raise UserError(f"{target} is being written by another process; wait for it") from error
    sync_folder(target.parent)
    return digest


def _fill(place: Place, info: FileInfo, part: Path, advance: Advance, hashed: bool) -> str | None:
    if info.size is None:
        access.download(place, part, advance)
        sync_file(part)
        return read_digest(part) if hashed else None
    size, digest = info.size, hashlib.sha256()
    # The lock has created the file. Its length says which bytes have arrived, so parts are written in order.
    with open(part, "r+b") as file, ThreadPoolExecutor(THREADS) as pool:
        # A longer file cannot be of this version.
        begun = min(file.seek(0, os.SEEK_END), size)
        file.truncate(begun)
        file.seek(0)
        while hashed and (chunk := file.read(PART_BYTES)):
            digest.update(chunk)
        file.seek(begun)
        advance(begun)
        starts = iter(range(begun, size, PART_BYTES))
        waiting: list[Future[bytes]] = []
        while True:
            # At most this many parts are in memory.
            while len(waiting) < THREADS and (start := next(starts, None)) is not None:
                waiting.append(pool.submit(access.read, place, start, min(start + PART_BYTES, size), info))
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
        return _fill(place, info, part, advance, hashed)
    return digest.hexdigest() if hashed else None
