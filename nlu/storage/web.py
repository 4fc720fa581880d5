"""The file system of web servers: fsspec's, which learns from the first byte whether a server reads in ranges."""

from typing import Any

import aiohttp
from fsspec.implementations.http import HTTPFileSystem

TIMEOUT_S = 30
PARTIAL, NO_RANGE = 206, 416


class Web(HTTPFileSystem):
    """Files at http(s) addresses, as they are written: an address that was signed keeps its form."""

    def __init__(self, **options: Any):
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
        # Bytes come as they are stored: a range of a compressed answer would be of another content.
        headers = {"User-Agent": "nlu", "Accept-Encoding": "identity"}
        client = {"timeout": timeout, "trust_env": True, "headers": headers, "auto_decompress": False}
        super().__init__(client_kwargs=client, encoded=True, **options)

    async def _info(self, url: str, **options: Any) -> dict[str, Any]:
        """Return what is known of a file; its size is None if the server does not read in ranges."""
        session = await self.set_session()
        # A GET of one byte, not a HEAD: its status tells whether the server reads in ranges. Servers may answer any
        # range of an empty file with 416.
        for headers in ({"Range": "bytes=0-0"}, {}):
            async with session.get(self.encode_url(url), headers=headers) as answer:
                if answer.status == NO_RANGE and headers:
                    continue
                self._raise_not_found_for_status(answer, url)
                _, _, total = answer.headers.get("Content-Range", "").rpartition("/")
                size = int(total) if answer.status == PARTIAL and total.isdecimal() else None
                found = {"ETag": answer.headers.get("ETag"), "LastModified": answer.headers.get("Last-Modified")}
                return {"name": url, "type": "file", "size": size, **found}
        raise AssertionError("unreachable")

    def read_range(self, path: str, start: int, stop: int, etag: str | None) -> bytes:
        """Return the bytes `start:stop` of the version of this etag, if the server knows conditions.

        The whole file is returned if the server does not read in ranges any more.
        """
        # The mark of a weak version (W/) does not say that the bytes are the same, and no condition takes it.
        condition = {"If-Match": f'"{etag}"'} if etag and not etag.startswith("W/") else {}
        return self.cat_file(path, start, stop, headers=condition)
