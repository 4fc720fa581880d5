"""The buckets of S3 and OSS, and the connections of fsspec's drivers that they use.

There is one connection per scheme, process and environment. Endpoints and credentials come from the environment. Of
s3fs, `call_s3`, `cp_file`, `mkdir` and its event loop are used; of ossfs, its private `_get_bucket` and `_endpoint`
(read in 2025.5).
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from nlu.config.errors import UserError
from nlu.storage.backend import Found
from nlu.storage.bucket import Bucket, Denied, Upload, UploadPart, etag_of, whole
from nlu.storage.environment import PREFIXES, sign_by_role
from nlu.storage.places import Reference


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

    def parts(self, key: str, upload: str) -> list[UploadPart]:
        found: list[UploadPart] = []
        marker: dict[str, Any] = {}
        while True:
            answer = self._call("read", key, "list_parts", Key=key, UploadId=upload, **marker)
            found += [
                UploadPart(
                    part["PartNumber"], part["Size"], etag_of(part["ETag"]) or "", part["LastModified"].timestamp()
                )
                for part in answer.get("Parts", [])
            ]
            if not answer.get("IsTruncated"):
                return found
            marker = {"PartNumberMarker": answer["NextPartNumberMarker"]}

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> UploadPart:
        answer = self._call("written", key, "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=content)
        return UploadPart(number, len(content), etag_of(answer["ETag"]) or "")

    def complete(self, key: str, upload: str, parts: list[UploadPart]) -> None:
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
    from nlu.storage.buckets import connect

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
        return Found(False, answer.content_length, etag_of(answer.etag), float(answer.last_modified))

    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, Found]]:
        token = ""
        while True:
            answer = self._call(
                "listed", prefix, "list_objects_v2", prefix, delimiter="" if nested else "/",
                continuation_token=token, max_keys=1000,
            )  # fmt: skip
            yield from ((folder, Found(is_folder=True)) for folder in answer.prefix_list)
            for entry in answer.object_list:
                yield entry.key, Found(False, entry.size, etag_of(entry.etag), float(entry.last_modified))
            if not answer.is_truncated:
                return
            token = answer.next_continuation_token

    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        asked = (span[0], span[1] - 1) if span else None

        def verb() -> bytes:
            answer = self._filesystem._get_bucket(self.name).get_object(key, byte_range=asked, headers=headers)
            return whole(answer.read(), span[1] - span[0] if span else answer.content_length)

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

    def uploads_below(self, prefix: str) -> Iterator[Upload]:
        key_marker = name_marker = ""
        while True:
            answer = self._call(
                "listed", prefix, "list_multipart_uploads", prefix=prefix, key_marker=key_marker,
                upload_id_marker=name_marker,
            )  # fmt: skip
            for upload in answer.upload_list:
                yield Upload(upload.key, upload.upload_id, float(upload.initiation_date))
            if not answer.is_truncated:
                return
            key_marker, name_marker = answer.next_key_marker, answer.next_upload_id_marker

    def abort(self, upload: Upload) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", upload.key, "abort_multipart_upload", upload.key, upload.name)

    def begin(self, key: str) -> str:
        return self._call("written", key, "init_multipart_upload", key).upload_id

    def parts(self, key: str, upload: str) -> list[UploadPart]:
        found: list[UploadPart] = []
        marker = ""
        while True:
            answer = self._call("read", key, "list_parts", key, upload, marker=marker)
            found += [
                UploadPart(part.part_number, part.size, etag_of(part.etag) or "", float(part.last_modified))
                for part in answer.parts
            ]
            if not answer.is_truncated:
                return found
            marker = answer.next_marker

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> UploadPart:
        answer = self._call("written", key, "upload_part", key, upload, number, content)
        return UploadPart(number, len(content), etag_of(answer.etag) or "")

    def complete(self, key: str, upload: str, parts: list[UploadPart]) -> None:
        from oss2.models import PartInfo

        listed = [PartInfo(part.number, part.etag) for part in parts]
        self._call("written", key, "complete_multipart_upload", key, upload, listed)


def connect(reference: Reference, **options: Any) -> tuple[Any, str]:
    """A filesystem of fsspec that no other caller shares, and the location's path in it.

    `options` go to the driver. Raises UserError for a scheme that is not known or whose package is missing.
    """
    import fsspec

    if reference.scheme in {"s3", "s3a", "oss"}:
        options = {"use_listings_cache": False, **options}
    if reference.scheme in {"s3", "s3a"}:
        own = compatible(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
        options = {**options, "config_kwargs": {**own, **options.get("config_kwargs", {})}}
    # Without an endpoint it warns of what is refused here in a sentence.
    logging.getLogger("ossfs").setLevel(logging.ERROR)
    try:
        filesystem, path = fsspec.url_to_fs(reference.location, skip_instance_cache=True, **options)
    except ImportError as error:
        of_oss = "pip install 'nlu[oss]', or use s3:// with AWS_ENDPOINT_URL"
        hint = of_oss if reference.scheme == "oss" else "install it"
        raise UserError(
            f"{reference.what} {reference.shown} needs a package that is missing ({error}); {hint}"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{reference.what} {reference.shown}: {error}; use a path, http(s)://, s3://, pypi://, hf:// "
            "or another scheme of fsspec"
        ) from error
    if reference.scheme == "oss":
        filesystem.dircache = ReadOnce()
        sign_by_role(filesystem)
    return filesystem, path


class ReadOnce(dict):
    """A cache of listings that forgets each once it was read, by the thread that made it.

    ossfs (2025.5) reads what it lists out of its cache, and with the cache turned off every listing is an error.
    """

    def __contains__(self, key: object) -> bool:
        return False

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((threading.get_ident(), key), value)

    def __getitem__(self, key: Any) -> Any:
        return self.pop((threading.get_ident(), key))


def compatible(endpoint: str) -> dict[str, Any]:
    """How the driver is to speak to an endpoint of OSS that understands S3; nothing for others.

    From Alibaba's page on access by SDKs of S3: the bucket in the host's name, and no chunks that are signed one by
    one, which newer drivers send with their checksums, and with signatures of version 4.
    """
    if not (urlsplit(endpoint).hostname or "").endswith(".aliyuncs.com"):
        return {}
    return {
        "signature_version": "s3",
        "s3": {"addressing_style": "virtual"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
