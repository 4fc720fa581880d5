"""Files at http(s) addresses, read with the standard library: downloaded into the cache, or in ranges.

Temporary failures are retried. A connection that ends early is a failure, never a short file.
"""

import http.client
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import FileStore, Found, download_progress
from nlu.storage.cache import Entry
from nlu.storage.places import Place, Reference
from nlu.storage.temporary import Pauses

logger = logging.getLogger(__name__)

TIMEOUT_S = 30
RETRY_DELAYS_S = Pauses(0.5, 2.0, 3)
CHUNK_BYTES = 1 << 20
TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}


def fetch_url(reference: Reference) -> Path:
    """The file at the URL, from the cache by sha256 where the reference has one, else by URL.

    Raises DataError where it cannot be had or its content is not the pinned one.
    """
    entry = file_entry(reference)
    return entry.find() or entry.fill(reference, lambda folder: _download(reference, folder / reference.name))


def file_entry(reference: Reference) -> Entry:
    """The entry of one remote file: the same file from a mirror is not fetched again when its sha256 is known."""
    if reference.sha256 is not None:
        return Entry.of("files", reference.sha256, reference.name)
    return Entry.of("files", reference.location)


def _download(reference: Reference, path: Path) -> Path:
    for delay_s in (*RETRY_DELAYS_S, None):
        try:
            receive(reference, path)
            break
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError) as error:
            if delay_s is None or not is_transient(error):
                raise _failure(reference, error) from error
            logger.warning("%s: %s; trying again in %g s", reference.shown, reason_of(error), delay_s)
            time.sleep(delay_s)
    reference.check_digest(path)
    return path


def receive(reference: Reference, path: Path) -> None:
    """Write what the URL gives to a file, all of it."""
    request = urllib.request.Request(reference.location, headers={"User-Agent": "nlu"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        length = response.headers.get("Content-Length")
        expected = int(length) if length is not None else None
        received = 0
        with open(path, "wb") as file, download_progress(reference.name, expected) as advance:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                received += len(chunk)
                advance(len(chunk))
    if expected is not None and received != expected:
        raise ConnectionError(f"the connection ended after {received} of {expected} bytes")


def is_transient(error: Exception) -> bool:
    """Whether the same may go well in a moment."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in TRANSIENT_STATUS
    return not isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)


def reason_of(error: Exception) -> str:
    """What went wrong, in the words of the server or the system."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", "") or error) or type(error).__name__


def _failure(reference: Reference, error: Exception) -> DataError:
    return DataError(
        f"{reference.what} {reference.shown} cannot be downloaded: {reason_of(error)}; "
        "correct the URL, or fetch the file by hand and give its path"
    )


PARTIAL, NOT_FOUND, GONE = 206, 404, 410

T = TypeVar("T")


class Web(FileStore):
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
