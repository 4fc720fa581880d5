"""The file system of OSS: ossfs, with what it lacks (etags, flat listings, ranges, large copies, keys of a role).

Of ossfs, the private `_call_oss` and `_get_bucket` are used (read in 2025.5).
"""

from collections.abc import Iterator
from typing import Any

from ossfs import OSSFileSystem

from nlu.storage.role_keys import sign_by_role

COPIED_BYTES = 500_000_000
"""the largest object that is copied in one request, and the size of a part of a larger one; OSS takes up to 1 GB"""


class Oss(OSSFileSystem):
    """OSS by oss2, with one connection per request and thread. Nothing is cached."""

    def __init__(self, **options: Any):
        super().__init__(use_listings_cache=False, **options)
        sign_by_role(self)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: there is no cache."""

    def bucket(self, name: str) -> Any:
        """Return the bucket as oss2 has it."""
        return self._get_bucket(name)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return what is known of an object, else of the folder of this name."""
        bucket, key = self.split_path(path)
        below = self._entries(bucket, f"{key}/" if key else "", "", page=100)
        try:
            if key:
                answer = self._call_oss("head_object", key, bucket=bucket)
                return _file(path, answer.content_length, answer.etag, answer.last_modified)
        except FileNotFoundError:
            pass
        except OSError:
            # The answer to a HEAD lacks a body, so it cannot say which of the credentials is wrong.
            next(below, None)
            raise
        # A key with a slash at its end is the mark of an empty folder.
        if not any(not entry["name"].endswith("/") for entry in below) and key:
            raise FileNotFoundError(path)
        return {"name": path, "type": "directory", "size": 0}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Return the files and folders directly in a folder."""
        bucket, key = self.split_path(path)
        found = list(self._entries(bucket, f"{key}/" if key else "", "/"))
        return found if detail else [entry["name"] for entry in found]

    def find(self, path: str, prefix: str = "", detail: bool = False, **options: Any) -> Any:
        """Return all files below a folder, or those whose paths in it begin with a prefix."""
        bucket, key = self.split_path(path)
        found = {one["name"]: one for one in self._entries(bucket, f"{key}/{prefix}" if key else prefix, "")}
        return found if detail else list(found)

    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> bytes:
        """Return the bytes `start:stop` of the version of this etag."""
        bucket, key = self.split_path(path)
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        # Both ends of a range are included, also in `cat_file` of ossfs.
        span = (start, stop - 1)
        return self._call_oss("get_object", key, bucket=bucket, byte_range=span, headers=headers).read()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write an object; with the mode "create" only if there is none."""
        headers = {"headers": {"x-oss-forbid-overwrite": "true"}} if mode == "create" else {}
        super().pipe_file(path, value, **headers, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy an object of any size within a bucket."""
        bucket, key = self.split_path(path1)
        _, target = self.split_path(path2)
        size = self.info(path1)["size"]
        if size <= COPIED_BYTES:
            super().cp_file(path1, path2, **options)
            return
        from oss2.models import PartInfo

        upload = self._call_oss("init_multipart_upload", target, bucket=bucket).upload_id
        parts = []
        for number, start in enumerate(range(0, size, COPIED_BYTES), start=1):
            # Both ends of a range are included.
            span = (start, min(start + COPIED_BYTES, size) - 1)
            answer = self._call_oss("upload_part_copy", bucket, key, span, target, upload, number, bucket=bucket)
            parts.append(PartInfo(number, answer.etag))
        self._call_oss("complete_multipart_upload", target, upload, parts, bucket=bucket)

    def _entries(self, bucket: str, prefix: str, delimiter: str, page: int = 1000) -> Iterator[dict[str, Any]]:
        options = {"prefix": prefix, "delimiter": delimiter, "max_keys": page}
        for entry in self._call_oss("ObjectIteratorV2", bucket=bucket, **options):
            name = f"{bucket}/{entry.key}"
            if entry.is_prefix():
                yield {"name": name.rstrip("/"), "type": "directory", "size": 0}
            else:
                yield _file(name, entry.size, entry.etag, entry.last_modified)


def _file(name: str, size: int, etag: str, modified_s: int) -> dict[str, Any]:
    return {"name": name, "type": "file", "size": size, "ETag": etag, "LastModified": modified_s}
