"""The buckets of S3 and OSS, and the connections of fsspec's drivers.

There is one connection per scheme, endpoint, process and environment. Endpoints and credentials come from the
environment; OSS_ENDPOINTS gives single buckets of OSS another endpoint, so that one process uses several regions. Of
s3fs, `call_s3`, `cp_file`, `mkdir` and the event loop are used; of ossfs, the private `_get_bucket`, `_endpoint` and
listings cache (read in 2025.5).
"""

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from nlu.config.addresses import Reference
from nlu.config.errors import UserError
from nlu.config.variables import ENDPOINT, PLACE, PREFIXES, name_of
from nlu.storage.backend import FileInfo
from nlu.storage.bucket import Bucket, Upload, UploadPart, etag_of, whole
from nlu.storage.role_keys import sign_by_role

ENDPOINT_OF_ALL, OWN_ENDPOINTS = name_of("oss", ENDPOINT), name_of("oss", PLACE)
_PLACE = re.compile(r"(https?://)?[\w.-]+(:\d+)?/?")
COPIED_MAX_BYTES = 1_000_000_000
"""the largest object that OSS copies in one request"""


class S3Bucket(Bucket):
    """A bucket of S3, by the client of s3fs, which threads may share."""

    scheme = "s3"

    def _call(self, action: str, key: str, method: str, **options: object) -> Any:
        return self.tried(action, key, lambda: self._filesystem.call_s3(method, Bucket=self.name, **options))

    def _pages(
        self, action: str, key: str, method: str, markers: Mapping[str, str], **options: object
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a listing; `markers` names each option that continues it, and the field of its value."""
        marker: dict[str, object] = {}
        while True:
            page = self._call(action, key, method, **options, **marker)
            yield page
            if not page.get("IsTruncated"):
                return
            # Some services do not return every marker.
            following = {option: page[field] for option, field in markers.items() if page.get(field)}
            marker = self.next_page(action, key, marker, following)

    def _head(self, key: str) -> FileInfo:
        return _file_info(self._call("read", key, "head_object", Key=key), "ContentLength")

    def _list_one(self, prefix: str) -> None:
        self._call("read", prefix, "list_objects_v2", Prefix=prefix, MaxKeys=1)

    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, FileInfo]]:
        options = {} if nested else {"Delimiter": "/"}
        markers = {"ContinuationToken": "NextContinuationToken"}
        for page in self._pages("listed", prefix, "list_objects_v2", markers, Prefix=prefix, **options):
            for entry in page.get("CommonPrefixes", []):
                yield entry["Prefix"], FileInfo(is_folder=True)
            for entry in page.get("Contents", []):
                yield entry["Key"], _file_info(entry, "Size")

    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        from fsspec.asyn import sync

        options = {"IfMatch": f'"{etag}"'} if etag else {}
        if span:
            # Both ends of an HTTP range are included.
            options["Range"] = f"bytes={span[0]}-{span[1] - 1}"

        def verb() -> bytes:
            answer = self._filesystem.call_s3("get_object", Bucket=self.name, Key=key, **options)
            try:
                # `call_s3` returns once the headers are there. The body belongs to the event loop of s3fs, and is read
                # there.
                content = sync(self._filesystem.loop, answer["Body"].read)
            finally:
                answer["Body"].close()
            return whole(content, span[1] - span[0] if span else answer["ContentLength"])

        return self.tried("read", key, verb)

    def put(self, key: str, content: bytes, *, only_new: bool = False) -> None:
        condition = {"IfNoneMatch": "*"} if only_new else {}
        self._call("written", key, "put_object", Key=key, Body=content, **condition)

    def copy(self, bucket: str, source: str, key: str) -> None:
        paths = f"{bucket}/{source}", f"{self.name}/{key}"
        # s3fs copies large objects in parts, which a single request of S3 could not (5 GB).
        self.tried("copied", key, lambda: self._filesystem.cp_file(*paths))

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", key, "delete_object", Key=key)

    def create(self) -> None:
        self.tried("made", "", lambda: self._filesystem.mkdir(self.name))

    def uploads_below(self, prefix: str) -> Iterator[Upload]:
        markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for page in self._pages("listed", prefix, "list_multipart_uploads", markers, Prefix=prefix):
            for upload in page.get("Uploads", []):
                yield Upload(upload["Key"], upload["UploadId"], upload["Initiated"].timestamp())

    def abort(self, upload: Upload) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", upload.key, "abort_multipart_upload", Key=upload.key, UploadId=upload.name)

    def begin(self, key: str) -> str:
        return self._call("written", key, "create_multipart_upload", Key=key)["UploadId"]

    def parts(self, key: str, upload: str) -> list[UploadPart]:
        markers = {"PartNumberMarker": "NextPartNumberMarker"}
        return [
            UploadPart(part["PartNumber"], part["Size"], etag_of(part["ETag"]) or "", part["LastModified"].timestamp())
            for page in self._pages("read", key, "list_parts", markers, Key=key, UploadId=upload)
            for part in page.get("Parts", [])
        ]

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> UploadPart:
        answer = self._call("written", key, "upload_part", Key=key, UploadId=upload, PartNumber=number, Body=content)
        return UploadPart(number, len(content), etag_of(answer["ETag"]) or "")

    def complete(self, key: str, upload: str, parts: list[UploadPart]) -> None:
        listed = {"Parts": [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]}
        self._call("written", key, "complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload=listed)


def _file_info(entry: Mapping[str, Any], size: str) -> FileInfo:
    modified = entry.get("LastModified")
    if isinstance(modified, str):
        modified = parsedate_to_datetime(modified)
    return FileInfo(False, entry[size], etag_of(entry.get("ETag")), modified.timestamp() if modified else None)


class OssBucket(Bucket):
    """A bucket of OSS, by oss2, with one connection per request and thread.

    Objects are deleted one by one, since OSS requires an MD5 for bulk deletion.
    """

    scheme = "oss"

    def _call(self, action: str, key: str, method: str, *values: object, **options: object) -> Any:
        return self.tried(
            action, key, lambda: getattr(self._filesystem._get_bucket(self.name), method)(*values, **options)
        )

    def _pages(
        self, action: str, key: str, method: str, markers: Mapping[str, str], *values: object, **options: object
    ) -> Iterator[Any]:
        """Yield the pages of a listing; `markers` names each option that continues it, and the field of its value."""
        # An empty marker asks oss2 for the first page.
        marker: dict[str, object] = dict.fromkeys(markers, "")
        while True:
            page = self._call(action, key, method, *values, **options, **marker)
            yield page
            if not page.is_truncated:
                return
            following = {option: getattr(page, field) for option, field in markers.items()}
            marker = self.next_page(action, key, marker, following)

    def _head(self, key: str) -> FileInfo:
        answer = self._call("read", key, "head_object", key)
        return FileInfo(False, answer.content_length, etag_of(answer.etag), float(answer.last_modified))

    def _list_one(self, prefix: str) -> None:
        self._call("read", prefix, "list_objects_v2", prefix, max_keys=1)

    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, FileInfo]]:
        options = {"delimiter": "" if nested else "/", "max_keys": 1000}
        markers = {"continuation_token": "next_continuation_token"}
        for page in self._pages("listed", prefix, "list_objects_v2", markers, prefix, **options):
            yield from ((folder, FileInfo(is_folder=True)) for folder in page.prefix_list)
            for entry in page.object_list:
                yield entry.key, FileInfo(False, entry.size, etag_of(entry.etag), float(entry.last_modified))

    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        # Both ends of a range of oss2 are included.
        asked = (span[0], span[1] - 1) if span else None

        def verb() -> bytes:
            answer = self._filesystem._get_bucket(self.name).get_object(key, byte_range=asked, headers=headers)
            return whole(answer.read(), span[1] - span[0] if span else answer.content_length)

        return self.tried("read", key, verb)

    def put(self, key: str, content: bytes, *, only_new: bool = False) -> None:
        headers = {"x-oss-forbid-overwrite": "true"} if only_new else {}
        self._call("written", key, "put_object", key, content, headers=headers)

    def can_copy(self, bucket: str, size: int | None) -> bool:
        return endpoint_of(bucket) == endpoint_of(self.name) and size is not None and size < COPIED_MAX_BYTES

    def copy(self, bucket: str, source: str, key: str) -> None:
        self._call("copied", key, "copy_object", bucket, source, key)

    def delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", key, "delete_object", key)

    def create(self) -> None:
        self._call("made", "", "create_bucket")

    def uploads_below(self, prefix: str) -> Iterator[Upload]:
        markers = {"key_marker": "next_key_marker", "upload_id_marker": "next_upload_id_marker"}
        for page in self._pages("listed", prefix, "list_multipart_uploads", markers, prefix=prefix):
            for upload in page.upload_list:
                yield Upload(upload.key, upload.upload_id, float(upload.initiation_date))

    def abort(self, upload: Upload) -> None:
        with suppress(FileNotFoundError):
            self._call("removed", upload.key, "abort_multipart_upload", upload.key, upload.name)

    def begin(self, key: str) -> str:
        return self._call("written", key, "init_multipart_upload", key).upload_id

    def parts(self, key: str, upload: str) -> list[UploadPart]:
        return [
            UploadPart(part.part_number, part.size, etag_of(part.etag) or "", float(part.last_modified))
            for page in self._pages("read", key, "list_parts", {"marker": "next_marker"}, key, upload)
            for part in page.parts
        ]

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> UploadPart:
        answer = self._call("written", key, "upload_part", key, upload, number, content)
        return UploadPart(number, len(content), etag_of(answer.etag) or "")

    def complete(self, key: str, upload: str, parts: list[UploadPart]) -> None:
        from oss2.models import PartInfo

        listed = [PartInfo(part.number, part.etag) for part in parts]
        self._call("written", key, "complete_multipart_upload", key, upload, listed)


def open_bucket(scheme: str, name: str, called: str = "", delays_s: Iterable[float] | None = None) -> Bucket:
    """Return the bucket `name` of S3 or OSS; sends no request. `called` and `delays_s` are those of `Bucket`.

    Raises UserError if the driver of the scheme is not installed, or if the endpoint of OSS is missing.
    """
    # The variables are part of the key of the cache, so that a changed endpoint or key makes a new connection.
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(PREFIXES)))
    kind = S3Bucket if scheme == "s3" else OssBucket
    endpoint, variable = endpoint_of(name) if kind is OssBucket else (None, None)
    bucket = kind(name, _connected(kind.scheme, endpoint, os.getpid(), settings), called, delays_s)
    bucket.endpoint_variable = variable
    return bucket


def own_endpoints() -> dict[str, str]:
    """Return the endpoints of buckets in OSS_ENDPOINTS. Raises UserError if it cannot be read."""
    found = {}
    for entry in filter(None, map(str.strip, os.environ.get(OWN_ENDPOINTS, "").split(","))):
        bucket, _, place = map(str.strip, entry.partition("="))
        if not bucket or not _PLACE.fullmatch(place):
            raise UserError(
                f"{OWN_ENDPOINTS} holds {entry!r}, but must be written BUCKET=REGION or BUCKET=ENDPOINT with commas "
                "between several, such as data=cn-beijing,runs=https://oss-cn-hangzhou.aliyuncs.com; correct it"
            )
        if "." not in place and "://" not in place:
            place = f"https://oss-{place.removeprefix('oss-')}.aliyuncs.com"
        found[bucket] = place
    return found


def endpoint_of(bucket: str) -> tuple[str | None, str]:
    """Return the endpoint of a bucket of OSS, None if it is not set, and the variable to correct."""
    if (own := own_endpoints().get(bucket)) is not None:
        return own, OWN_ENDPOINTS
    return os.environ.get(ENDPOINT_OF_ALL) or None, ENDPOINT_OF_ALL


@lru_cache(maxsize=16)
def _connected(scheme: str, endpoint: str | None, process: int, settings: tuple[tuple[str, str], ...]) -> Any:
    """Return a driver. It is cached because it is slow to make, per process because it does not survive a fork."""
    reference = Reference(f"{scheme}://", scheme, None, "store")
    if scheme == "oss":
        filesystem, _ = connect(reference, **({"endpoint": endpoint} if endpoint else {}))
        if not filesystem._endpoint:
            raise UserError(
                f"oss:// needs an endpoint; set {ENDPOINT_OF_ALL} in the environment, or {OWN_ENDPOINTS}=BUCKET=REGION"
            )
        return filesystem
    # `Bucket.tried` retries, so the driver does not, unless the environment says so.
    retries = {} if "AWS_MAX_ATTEMPTS" in os.environ else {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
    filesystem, _ = connect(reference, **retries)
    # s3fs has its own loop of retries around botocore's.
    filesystem.retries = 1
    return filesystem


def connect(reference: Reference, **options: Any) -> tuple[Any, str]:
    """Return a filesystem of fsspec that is not shared with other callers, and the path of the reference in it.

    `options` are passed to the driver. Raises UserError if the scheme is unknown or its package is not installed.
    """
    import fsspec

    if reference.scheme in {"s3", "s3a", "oss"}:
        # Other processes write to the same folders, so a remembered listing may be wrong.
        options = {"use_listings_cache": False, **options}
    if reference.scheme in {"s3", "s3a"}:
        own = _oss_options(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
        options = {**options, "config_kwargs": {**own, **options.get("config_kwargs", {})}}
    if reference.scheme == "hf":
        # The driver remembers the variable that it was imported with.
        options = {"endpoint": os.environ.get("HF_ENDPOINT") or None, **options}
    # ossfs warns about a missing endpoint, for which an error is raised here.
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
        filesystem.dircache = _ReadOnceCache()
        sign_by_role(filesystem)
    return filesystem, path


class _ReadOnceCache(dict):
    """A cache of listings in which each entry can be read once, by the thread that wrote it.

    ossfs (2025.5) returns listings through its cache, and raises an error if the cache is switched off.
    """

    def __contains__(self, key: object) -> bool:
        return False

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__((threading.get_ident(), key), value)

    def __getitem__(self, key: object) -> object:
        return self.pop((threading.get_ident(), key))


def _oss_options(endpoint: str) -> dict[str, object]:
    """Return botocore's options for OSS's S3-compatible endpoint, none for other endpoints.

    As Alibaba's page on S3 SDKs requires: virtual-hosted addresses, and no chunks that are signed one by one, which
    newer drivers send for checksums and for signatures of version 4.
    """
    if not (urlsplit(endpoint).hostname or "").endswith(".aliyuncs.com"):
        return {}
    return {
        "signature_version": "s3",
        "s3": {"addressing_style": "virtual"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
