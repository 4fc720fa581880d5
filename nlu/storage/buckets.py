"""The buckets of S3, and which kinds of bucket there are.

All that this package asks of an object store it asks by the verbs of `nlu.storage.bucket`. There is one connection for
each kind of store, process and environment.

Of s3fs `call_s3`, `cp_file`, `mkdir` and its event loop are used.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from nlu.config.errors import UserError
from nlu.storage.bucket import Bucket, Denied, Part, Upload, etag_of, whole
from nlu.storage.environment import PREFIXES
from nlu.storage.oss_bucket import OssBucket
from nlu.storage.places import Reference
from nlu.storage.store import Found


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
            return whole(content, span[1] - span[0] if span else answer["ContentLength"])

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

    def uploads_below(self, prefix: str) -> Iterator[Upload]:
        marker: dict[str, Any] = {}
        while True:
            answer = self._call("listed", prefix, "list_multipart_uploads", Prefix=prefix, **marker)
            for upload in answer.get("Uploads", []):
                yield Upload(upload["Key"], upload["UploadId"], upload["Initiated"].timestamp())
            if not answer.get("IsTruncated"):
                return
            # Some stores tell of the key alone.
            names = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
            marker = {name: answer[told] for name, told in names.items() if answer.get(told)}

    def abort(self, upload: Upload) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", upload.key, "abort_multipart_upload", Key=upload.key, UploadId=upload.name)

    def begin(self, key: str) -> str:
        return self._call("written", key, "create_multipart_upload", Key=key)["UploadId"]

    def parts(self, key: str, upload: str) -> list[Part]:
        found: list[Part] = []
        marker: dict[str, Any] = {}
        while True:
            answer = self._call("read", key, "list_parts", Key=key, UploadId=upload, **marker)
            found += [
                Part(part["PartNumber"], part["Size"], etag_of(part["ETag"]) or "", part["LastModified"].timestamp())
                for part in answer.get("Parts", [])
            ]
            if not answer.get("IsTruncated"):
                return found
            marker = {"PartNumberMarker": answer["NextPartNumberMarker"]}

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> Part:
        answer = self._call("written", key, "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=content)
        return Part(number, len(content), etag_of(answer["ETag"]) or "")

    def complete(self, key: str, upload: str, parts: list[Part]) -> None:
        listed = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]
        self._call(
            "written", key, "complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": listed}
        )


def _found(entry: dict[str, Any], size: str) -> Found:
    modified = entry.get("LastModified")
    if isinstance(modified, str):
        modified = parsedate_to_datetime(modified)
    return Found(False, entry[size], etag_of(entry.get("ETag")), modified.timestamp() if modified else None)


def open_bucket(scheme: str, name: str, called: str = "", delays_s: Iterable[float] | None = None) -> Bucket:
    """The bucket of an object store; asks nothing yet. What it is `called` in errors is its address, if not given.

    Its requests are tried again after `delays_s`, `RETRY_DELAYS_S` if not given.

    Raises UserError where the driver of the scheme is not installed, or OSS has no endpoint.
    """
    told = tuple(sorted(item for item in os.environ.items() if item[0].startswith(PREFIXES)))
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
