"""Large files in parts, in both directions: an interrupted transfer continues with the parts that have arrived.

A bucket of S3 keeps the parts of an unfinished upload; for OSS, oss2 notes them in the cache. A download keeps its
bytes beside the target in `.NAME.DIGEST.part`; DIGEST identifies the version of the source, so versions never mix.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Unpack

from nlu.config.errors import DataError, UserError
from nlu.storage import access
from nlu.storage.access import Asking, FileInfo
from nlu.storage.cache import cache_dir
from nlu.storage.files import sync_folder
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import Place
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.refusals import Changed, Refused, asked

SHOWN_FROM_MB = 5
Advance = Callable[[int], None]
"""called with each number of bytes that were transferred"""

PART_BYTES = 16 << 20
WHOLE_BYTES = 2 * PART_BYTES
"""a smaller file is written in one request"""
THREADS = 4


def put(path: Path, place: Place, advance: Advance, **asking: Unpack[Asking]) -> None:
    """Write a local file to a bucket, complete or not at all; an interrupted upload of a large file is continued."""
    size = path.stat().st_size
    if size < WHOLE_BYTES:
        access.write(place, path.read_bytes(), **asking)
        advance(size)
    elif place.scheme == "oss":
        _put_by_oss2(path, place, advance, asking)
    else:
        _put_in_parts(path, place, size, advance, asking)


def _put_by_oss2(path: Path, place: Place, advance: Advance, asking: Asking) -> None:
    import oss2

    bucket, sent = filesystem_of(place)[0].bucket(place.bucket), 0

    def progress(so_far: int, size: int | None) -> None:
        nonlocal sent
        advance(so_far - sent)
        sent = so_far

    def verb() -> None:
        oss2.resumable_upload(
            bucket, place.path, str(path), store=oss2.ResumableStore(str(cache_dir()), "uploads"),
            multipart_threshold=WHOLE_BYTES, part_size=PART_BYTES, num_threads=THREADS, progress_callback=progress,
        )  # fmt: skip

    asked(place, "written", verb, **asking)


def _put_in_parts(path: Path, place: Place, size: int, advance: Advance, asking: Asking) -> None:
    """Upload a large file to S3, continuing the newest unfinished upload of this key.

    S3 joins parts by the etags that this process gives, so the parts of two writers never form one object: the later
    writer is refused.
    """
    filesystem, _ = filesystem_of(place)

    def call(method: str, action: str = "sent in parts", **options: Any) -> Any:
        return asked(place, action, lambda: filesystem.call_s3(method, Bucket=place.bucket, **options), **asking)

    exact: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, Refused):  # without this permission nothing is continued
        begun = call("list_multipart_uploads", Prefix=place.path).get("Uploads", [])
        exact += sorted((one for one in begun if one["Key"] == place.path), key=lambda one: one["Initiated"])
    upload = exact[-1] if exact else call("create_multipart_upload", "written", Key=place.path)
    named = {"Key": place.path, "UploadId": upload["UploadId"]}

    def send(number: int) -> str:
        with open(path, "rb") as file:
            file.seek((number - 1) * PART_BYTES)
            content = file.read(PART_BYTES)
        # The MD5 of a part is its etag. If encryption changes the etag, the part is only sent again.
        etag = f'"{_md5(content)}"'
        if there.get(number) != etag:
            etag = call("upload_part", PartNumber=number, Body=content, **named)["ETag"]
        advance(len(content))
        return etag

    etags: list[str] = []
    try:
        # The answer has 1,000 parts at most; others are sent again.
        arrived = call("list_parts", **named).get("Parts", []) if exact else []
        there = {part["PartNumber"]: part["ETag"] for part in arrived}
        with ThreadPoolExecutor(THREADS) as pool:
            etags += pool.map(send, range(1, -(-size // PART_BYTES) + 1))
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, start=1)]
        call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **named)
    except FileNotFoundError as error:
        # The answer to an earlier try may have been lost: then the object is there.
        info = access.stat(place)
        if info is None or info.etag != joined_etag(etag.strip('"') for etag in etags):
            raise DataError(f"{place.shown}: its upload was ended by another process; try again") from error


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def joined_etag(etags: Iterable[str]) -> str:
    """Return the etag that S3 gives to an object of parts with these etags."""
    digests = [bytes.fromhex(etag) for etag in etags]
    return f"{_md5(b''.join(digests))}-{len(digests)}"


def is_content(path: Path, etag: str) -> bool | None:
    """Return whether a local file has the content of an etag; None if the etag does not tell."""
    digest, dash, _ = etag.lower().partition("-")
    if len(digest) != 32 or set(digest) - set("0123456789abcdef"):
        return None
    with open(path, "rb") as file:
        if not dash:
            return hashlib.file_digest(file, "md5").hexdigest() == digest
        # Other programs upload in other parts.
        parts = iter(lambda: file.read(PART_BYTES), b"")
        return True if joined_etag(map(_md5, parts)) == etag.lower() else None


def fetch_into(place: Place, info: FileInfo, target: Path, advance: Advance) -> None:
    """Copy the file that `info` describes to a local path, atomically, continuing an interrupted download.

    Raises Changed if the source changes meanwhile, UserError if another process writes to the same path.
    """
    version = hashlib.sha256(repr((place.shown, info.size, info.etag, info.modified_s)).encode()).hexdigest()[:12]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{version}.part")
    try:
        with hold_lock(part, wait_s=0, optional=True), open(part, "r+b") as file:
            begun = _fill(place, info, file, advance)
            if begun and info.etag and is_content(part, info.etag) is False:
                # The bytes of an interrupted download may not have reached the disk.
                file.truncate(0)
                advance(-(info.size or 0))
                _fill(place, info, file, advance)
            # Before the rename: a file under its final name has its final time.
            if info.modified_s is not None:
                os.utime(part, (info.modified_s, info.modified_s))
            os.replace(part, target)
    except FileNotFoundError as error:
        if str(error.filename) == str(part):
            # The disk refuses it, such as that of /proc.
            raise
        raise Changed(f"{place.shown} was removed while it was read; try again") from error
    except Locked as error:
        raise UserError(f"{target} is being written by another process; wait for it") from error
    sync_folder(target.parent)


def _fill(place: Place, info: FileInfo, file: BinaryIO, advance: Advance) -> int:
    """Write what is missing of a file, and sync it; returns how many bytes were there."""
    if info.size is None:
        filesystem, path = filesystem_of(place)
        asked(place, "read", lambda: filesystem.get_file(path, file.name))
        os.fsync(file.fileno())
        return 0
    # The length says which bytes have arrived, so parts are written in order. A longer file is not of this version.
    begun, size = min(file.seek(0, os.SEEK_END), info.size), info.size
    file.truncate(begun)
    file.seek(begun)
    advance(begun)

    def read(start: int) -> bytes:
        return access.read(place, start, min(start + PART_BYTES, size), info)

    with ThreadPoolExecutor(THREADS) as pool:
        # At most this many parts are in memory.
        for first in range(begun, size, THREADS * PART_BYTES):
            for content in pool.map(read, range(first, min(first + THREADS * PART_BYTES, size), PART_BYTES)):
                file.write(content)
                advance(len(content))
    file.flush()
    os.fsync(file.fileno())
    return begun


def no_progress(size: int) -> None:
    """An `Advance` that shows nothing."""


@contextmanager
def download_progress(name: str, size: int | None) -> Iterator[Advance]:
    """Give a function to call with each number of bytes received, which moves a progress bar on a terminal.

    `size` is the total in bytes, None if it is unknown. Small transfers, and those without a terminal, show no bar.
    """
    if size is None or size <= SHOWN_FROM_MB * 1_000_000 or not sys.stderr.isatty():
        yield no_progress
        return
    # Imported late: rich is slow to import, and few transfers show a bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=size)
        yield lambda received: progress.advance(task, received)
