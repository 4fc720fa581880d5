"""What lies at an http(s) address, read in ranges where the server gives them."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Found, Store
from nlu.storage.download import RETRY_DELAYS_S, TIMEOUT_S, is_transient, reason_of, receive
from nlu.storage.places import Place, Reference

PARTIAL, NOT_FOUND, GONE = 206, 404, 410

T = TypeVar("T")


class Web(Store):
    """All servers; they list nothing."""

    def look(self, place: Place) -> Found | None:
        def verb() -> Found:
            with _open(place, 0, 1) as response:
                _, _, total = response.headers.get("Content-Range", "").rpartition("/")
                modified = response.headers.get("Last-Modified")
                return Found(
                    is_folder=False,
                    size=int(total) if response.status == PARTIAL and total.isdecimal() else None,
                    etag=(response.headers.get("ETag") or "").strip('"') or None,
                    modified_s=parsedate_to_datetime(modified).timestamp() if modified else None,
                )

        try:
            return _tried(place, verb)
        except FileNotFoundError:
            return None

    def files(self, place: Place) -> dict[str, Found]:
        _refuse_folder(place)

    def children(self, place: Place) -> dict[str, Found]:
        _refuse_folder(place)

    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        def verb() -> bytes:
            with _open(place, start, stop) as response:
                if response.status != PARTIAL:
                    raise DataError(f"{place.shown} changed while it was read; try again")
                content = response.read()
            if len(content) != stop - start:
                raise ConnectionError(f"{len(content)} of {stop - start} bytes came")
            return content

        return _tried(place, verb)

    def read_whole(self, place: Place, path: Path) -> None:
        reference = Reference(place.path, place.scheme, None, "URL")
        _tried(place, lambda: receive(reference, path))


def _open(place: Place, start: int, stop: int) -> http.client.HTTPResponse:
    # A server may answer a range of an empty file with 416, which a request for all of it never meets.
    headers = {"User-Agent": "nlu", "Range": f"bytes={start}-{stop - 1}"}
    try:
        return urllib.request.urlopen(urllib.request.Request(place.path, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        request = urllib.request.Request(place.path, headers={"User-Agent": "nlu"})
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)


def _tried(place: Place, verb: Callable[[], T]) -> T:
    for delay_s in (*RETRY_DELAYS_S, None):
        try:
            return verb()
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code in (NOT_FOUND, GONE):
                raise FileNotFoundError(place.shown) from error
            if delay_s is None or not is_transient(error):
                raise DataError(
                    f"{place.shown} cannot be read: {reason_of(error)}; correct the URL, or try again later"
                ) from error
            time.sleep(delay_s)
    raise AssertionError


def _refuse_folder(place: Place) -> NoReturn:
    raise UserError(f"{place.shown}: a web server lists no folder; name each file")
