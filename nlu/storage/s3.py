"""The file system of S3: s3fs, with what it lacks (ranges of one version, empty folders, reasons of a refusal)."""

from typing import Any

from fsspec.asyn import sync
from s3fs import S3FileSystem

LOOKED_AT = 100
"""keys of a folder in which an object is looked for"""


class S3(S3FileSystem):
    """S3 by aiobotocore. Nothing is cached, and each request is made once."""

    # s3fs has its own loop of retries around botocore's.
    retries = 1

    def __init__(self, **options: Any):
        # With one request at a time, a read is not preceded by a question about the size.
        super().__init__(use_listings_cache=False, max_concurrency=1, **options)

    async def _info(self, path: str, *values: Any, **options: Any) -> dict[str, Any]:
        """Return what is known of an object, else of the folder of this name."""
        bucket, key, _ = self.split_path(path)
        below = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "MaxKeys": LOOKED_AT}
        try:
            found = await super()._info(path, *values, **options)
        except PermissionError:
            # The answer to a HEAD lacks a body, so it cannot say which of the credentials is wrong.
            await self._call_s3("list_objects_v2", **below)
            raise
        if key and found["type"] == "directory":
            # Some services keep folders without objects; their marks are keys with a slash at the end.
            there = await self._call_s3("list_objects_v2", **below)
            if all(entry["Key"].endswith("/") for entry in there.get("Contents", [])):
                raise FileNotFoundError(path)
        return found

    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> bytes:
        """Return the bytes `start:stop` of the version of this etag, which `cat_file` cannot ask for."""
        bucket, key, _ = self.split_path(path)
        condition = {"IfMatch": f'"{etag}"'} if etag else {}
        # Both ends of an HTTP range are included.
        answer = self.call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **condition)
        try:
            # `call_s3` returns once the headers are there. The body belongs to the event loop, and is read there.
            return sync(self.loop, answer["Body"].read)
        finally:
            answer["Body"].close()
