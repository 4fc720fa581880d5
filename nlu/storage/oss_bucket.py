"""A bucket of OSS: the verbs of `nlu.storage.bucket` by oss2.

Of ossfs the connection to a bucket of oss2 is used, which is private (read in 2025.5).
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from nlu.storage.bucket import Bucket, Denied, Part, Upload, etag_of, whole
from nlu.storage.store import Found


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

    def parts(self, key: str, upload: str) -> list[Part]:
        found: list[Part] = []
        marker = ""
        while True:
            answer = self._call("read", key, "list_parts", key, upload, marker=marker)
            found += [
                Part(part.part_number, part.size, etag_of(part.etag) or "", float(part.last_modified))
                for part in answer.parts
            ]
            if not answer.is_truncated:
                return found
            marker = answer.next_marker

    def put_part(self, key: str, upload: str, number: int, content: bytes) -> Part:
        answer = self._call("written", key, "upload_part", key, upload, number, content)
        return Part(number, len(content), etag_of(answer.etag) or "")

    def complete(self, key: str, upload: str, parts: list[Part]) -> None:
        from oss2.models import PartInfo

        listed = [PartInfo(part.number, part.etag) for part in parts]
        self._call("written", key, "complete_multipart_upload", key, upload, listed)
