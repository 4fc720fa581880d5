"""A bucket of S3 or OSS, one request a verb: look, list by folder, get, put, copy, delete, parts of an upload.

All that this package asks of an object store it asks here. Each verb is tried again where the store or the way to it
fails, so each is harmless when it is done twice. There is one connection for each kind of store, process and
environment.

Of s3fs `call_s3`, `cp_file`, `mkdir` and its event loop are used, of ossfs the connection to a bucket of oss2, which is
private (read in 2025.5).
"""

import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeVar

from nlu.config.errors import UserError
from nlu.storage.answers import (
    CHANGED,
    RETRY_DELAYS_S,
    Changed,
    Denied,
    Unreachable,
    code_of,
    is_absent,
    is_no_endpoint,
    refusal,
    status_of,
)
from nlu.storage.reference import Reference
from nlu.storage.store import Found

log = logging.getLogger(__name__)

LASTING_STATUS = {400, 405, 409, 411, 412, 416, 501}
STANDS_STATUS = {409, 412}
TRANSIENT_CODES = {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}

TOLD = re.compile("AWS_|OSS_|FSSPEC_|ALIBABA_CLOUD_")
"""variables that say how to connect"""
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A part of an upload; they count from 1."""

    number: int
    size: int
    etag: str


class Bucket(ABC):
    """The bucket `name` of a store; keys have no slash in front. Errors call what was asked for `called`, if given.

    `delays_s` are the pauses between the tries of a request, `RETRY_DELAYS_S` if not given.

    Every verb raises Denied for credentials that are refused, Unreachable where the store does not answer, Changed
    where an object is not the one that was asked for, FileNotFoundError where it or the bucket is not there.
    """

    scheme: str

    def __init__(self, name: str, filesystem: Any, called: str = "", delays_s: tuple[float, ...] | None = None):
        self.name, self._filesystem, self._called = name, filesystem, called
        self._delays_s = RETRY_DELAYS_S if delays_s is None else delays_s

    @abstractmethod
    def head(self, key: str) -> Found | None:
        """What the store says of an object; None where there is none."""

    @abstractmethod
    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, Found]]:
        """Every key that begins with the prefix, in order; not `nested`: up to the next slash, folders once."""

    @abstractmethod
    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        """The object, or its bytes from the first of `span` up to the second; it must still have that etag."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Write an object; readers see the former or this one."""

    @abstractmethod
    def create_object(self, key: str, content: bytes) -> None:
        """Write an object on the condition that none stands there."""

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object where none stands; returns whether it was written.

        Where an answer is lost the object may stand although False is returned or Unreachable raised: whoever must know
        reads it, and finds by an identity in it whose it is.
        """
        try:
            self.create_object(key, content)
        except (Changed, Unreachable) as error:
            if status_of(error) in STANDS_STATUS:
                return False
            raise
        return True

    @abstractmethod
    def copy(self, bucket: str, source: str, key: str) -> None:
        """Copy an object within the store."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, or nothing where there is none."""

    @abstractmethod
    def create(self) -> None:
        """Make the bucket."""

    @abstractmethod
    def uploads(self, key: str) -> list[str]:
        """The uploads that were begun for exactly this key, the newest last."""

    @abstractmethod
    def begin(self, key: str) -> str:
        """Begin an upload of several parts; returns its name."""

    @abstractmethod
    def parts(self, key: str, upload: str) -> list[Part]:
        """What has arrived of an upload."""

    @abstractmethod
    def put_part(self, key: str, upload: str, number: int, content: bytes) -> Part:
        """Write a part."""

    @abstractmethod
    def complete(self, key: str, upload: str, parts: list[Part]) -> None:
        """Make the object of its parts."""

    def tried(self, action: str, key: str, verb: Callable[[], T]) -> T:
        """What `verb` returns, tried again where it fails for a while; errors say that the key cannot be `action`."""
        named = self._called or f"{self.scheme}://{self.name}/{key}".rstrip("/")
        for delay_s in (*self._delays_s, None):
            try:
                return verb()
            except (ValueError, TypeError, UserError) as error:
                if is_no_endpoint(error):
                    raise refusal(named, action, error, self.scheme) from error
                raise
            except Exception as error:  # each driver has exceptions of its own
                if is_absent(error):
                    raise FileNotFoundError(named) from error
                if status_of(error) == CHANGED:
                    raise Changed(f"{named} changed while it was {action}; try again") from error
                reason = refusal(named, action, error, self.scheme)
                if delay_s is None or not _is_transient(error, reason):
                    raise reason from error
                log.debug("%s; trying again in %g s", reason, delay_s)
                time.sleep(delay_s)
        raise AssertionError


def _is_transient(error: Exception, reason: Exception) -> bool:
    """Whether the same may go well in a moment: the store is busy, or the way to it broke."""
    if isinstance(reason, Denied) or type(error).__name__ == "ParamValidationError":
        return False
    return status_of(error) not in LASTING_STATUS or code_of(error) in TRANSIENT_CODES


def open_bucket(scheme: str, name: str, called: str = "", delays_s: tuple[float, ...] | None = None) -> Bucket:
    """The bucket of an object store; asks nothing yet. What it is `called` in errors is its address, if not given.

    Its requests are tried again after `delays_s`, `RETRY_DELAYS_S` if not given.

    Raises UserError where the driver of the scheme is not installed, or OSS has no endpoint.
    """
    told = tuple(sorted(item for item in os.environ.items() if TOLD.match(item[0])))
    kind = S3Bucket if scheme == "s3" else OssBucket
    return kind(name, _connected(kind.scheme, os.getpid(), told), called, delays_s)


@lru_cache(maxsize=8)
def _connected(scheme: str, process: int, told: tuple[tuple[str, str], ...]) -> Any:
    """The driver, which takes long to make, and whose event loop and sockets do not survive a fork."""
    from nlu.storage.drivers import connect

    reference = Reference(f"{scheme}://", scheme, None, "store")
    if scheme == "oss":
        filesystem, _ = connect(reference)
        if not filesystem._endpoint:
            raise UserError("oss:// needs an endpoint; set OSS_ENDPOINT in the environment")
        return filesystem
    # Here alone is decided how often something is tried, unless the environment says it.
    retries = {} if "AWS_MAX_ATTEMPTS" in os.environ else {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
    filesystem, _ = connect(reference, **retries)
    filesystem.retries = 1
    return filesystem


class S3Bucket(Bucket):
    """Through the client of s3fs, which threads may share."""

    scheme = "s3"

    def _call(self, action: str, key: str, method: str, **options: Any) -> Any:
        return self.tried(action, key, lambda: self._filesystem.call_s3(method, Bucket=self.name, **options))

    def head(self, key: str) -> Found | None:
        try:
            return _found(self._call("read", key, "head_object", Key=key), "ContentLength")
        except FileNotFoundError:
            return None
        except Denied:
            # The answer to a HEAD has no body, so it cannot say which of the credentials is wrong.
            self._call("read", key, "list_objects_v2", Prefix=key, MaxKeys=1)
            raise

    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, Found]]:
        options: dict[str, Any] = {} if nested else {"Delimiter": "/"}
        while True:
            answer = self._call("listed", prefix, "list_objects_v2", Prefix=prefix, **options)
            for entry in answer.get("CommonPrefixes", []):
                yield entry["Prefix"], Found(is_folder=True)
            for entry in answer.get("Contents", []):
                yield entry["Key"], _found(entry, "Size")
            if not answer.get("IsTruncated"):
                return
            options["ContinuationToken"] = answer["NextContinuationToken"]

    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        from fsspec.asyn import sync

        options = {"IfMatch": f'"{etag}"'} if etag else {}
        if span:
            options["Range"] = f"bytes={span[0]}-{span[1] - 1}"

        def verb() -> bytes:
            answer = self._filesystem.call_s3("get_object", Bucket=self.name, Key=key, **options)
            try:
                content = sync(self._filesystem.loop, answer["Body"].read)
            finally:
                answer["Body"].close()
            return _whole(content, span[1] - span[0] if span else answer["ContentLength"])

        return self.tried("read", key, verb)

    def put(self, key: str, content: bytes) -> None:
        self._call("written", key, "put_object", Key=key, Body=content)

    def create_object(self, key: str, content: bytes) -> None:
        self._call("written", key, "put_object", Key=key, Body=content, IfNoneMatch="*")

    def copy(self, bucket: str, source: str, key: str) -> None:
        verb = lambda: self._filesystem.cp_file(f"{bucket}/{source}", f"{self.name}/{key}")  # noqa: E731
        self.tried("copied", key, verb)

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", key, "delete_object", Key=key)

    def create(self) -> None:
        self.tried("made", "", lambda: self._filesystem.mkdir(self.name))

    def uploads(self, key: str) -> list[str]:
        found = self._call("read", key, "list_multipart_uploads", Prefix=key).get("Uploads", [])
        exact = [upload for upload in found if upload["Key"] == key]
        return [upload["UploadId"] for upload in sorted(exact, key=lambda upload: upload["Initiated"])]

    def begin(self, key: str) -> str:
        return self._call("written", key, "create_multipart_upload", Key=key)["UploadId"]

    def parts(self, key: str, upload: str) -> list[Part]:
        found: list[Part] = []
        marker: dict[str, Any] = {}
        while True:
            answer = self._call("read", key, "list_parts", Key=key, UploadId=upload, **marker)
            found += [
                Part(part["PartNumber"], part["Size"], _etag(part["ETag"]) or "") for part in answer.get("Parts", [])
            ]
            if not answer.get("IsTruncated"):
                return found
            marker = {"PartNumberMarker": answer["NextPartNumberMarker"]}

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> Part:
        answer = self._call("written", key, "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=content)
        return Part(number, len(content), _etag(answer["ETag"]) or "")

    def complete(self, key: str, upload: str, parts: list[Part]) -> None:
        listed = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]
        self._call(
            "written", key, "complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": listed}
        )


class OssBucket(Bucket):
    """Through oss2, one connection a request of a thread. Deletes one by one, since OSS wants an MD5 of bulk ones."""

    scheme = "oss"

    def _call(self, action: str, key: str, method: str, *values: Any, **options: Any) -> Any:
        def verb() -> Any:
            return getattr(self._filesystem._get_bucket(self.name), method)(*values, **options)

        return self.tried(action, key, verb)

    def head(self, key: str) -> Found | None:
        try:
            answer = self._call("read", key, "head_object", key)
        except FileNotFoundError:
            return None
        except Denied:
            self._call("read", key, "list_objects_v2", key, max_keys=1)
            raise
        return Found(False, answer.content_length, _etag(answer.etag), float(answer.last_modified))

    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, Found]]:
        token = ""
        while True:
            answer = self._call(
                "listed", prefix, "list_objects_v2", prefix, delimiter="" if nested else "/",
                continuation_token=token, max_keys=1000,
            )  # fmt: skip
            yield from ((folder, Found(is_folder=True)) for folder in answer.prefix_list)
            for entry in answer.object_list:
                yield entry.key, Found(False, entry.size, _etag(entry.etag), float(entry.last_modified))
            if not answer.is_truncated:
                return
            token = answer.next_continuation_token

    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        asked = (span[0], span[1] - 1) if span else None

        def verb() -> bytes:
            answer = self._filesystem._get_bucket(self.name).get_object(key, byte_range=asked, headers=headers)
            return _whole(answer.read(), span[1] - span[0] if span else answer.content_length)

        return self.tried("read", key, verb)

    def put(self, key: str, content: bytes) -> None:
        self._call("written", key, "put_object", key, content)

    def create_object(self, key: str, content: bytes) -> None:
        self._call("written", key, "put_object", key, content, headers={"x-oss-forbid-overwrite": "true"})

    def copy(self, bucket: str, source: str, key: str) -> None:
        self._call("copied", key, "copy_object", bucket, source, key)

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", key, "delete_object", key)

    def create(self) -> None:
        self._call("made", "", "create_bucket")

    def uploads(self, key: str) -> list[str]:
        answer = self._call("read", key, "list_multipart_uploads", prefix=key)
        exact = [upload for upload in answer.upload_list if upload.key == key]
        return [upload.upload_id for upload in sorted(exact, key=lambda upload: upload.initiation_date)]

    def begin(self, key: str) -> str:
        return self._call("written", key, "init_multipart_upload", key).upload_id

    def parts(self, key: str, upload: str) -> list[Part]:
        found: list[Part] = []
        marker = ""
        while True:
            answer = self._call("read", key, "list_parts", key, upload, marker=marker)
            found += [Part(part.part_number, part.size, _etag(part.etag) or "") for part in answer.parts]
            if not answer.is_truncated:
                return found
            marker = answer.next_marker

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> Part:
        answer = self._call("written", key, "upload_part", key, upload, number, content)
        return Part(number, len(content), _etag(answer.etag) or "")

    def complete(self, key: str, upload: str, parts: list[Part]) -> None:
        from oss2.models import PartInfo

        listed = [PartInfo(part.number, part.etag) for part in parts]
        self._call("written", key, "complete_multipart_upload", key, upload, listed)


def _found(entry: dict[str, Any], size: str) -> Found:
    modified = entry.get("LastModified")
    if isinstance(modified, str):
        modified = parsedate_to_datetime(modified)
    return Found(False, entry[size], _etag(entry.get("ETag")), modified.timestamp() if modified else None)


def _etag(text: str | None) -> str | None:
    return text.strip('"') or None if text else None


def _whole(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise ConnectionError(f"{len(content)} of {size} bytes came")
    return content
