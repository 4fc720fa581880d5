"""Files at http(s) addresses: downloaded into the cache, or read in ranges where the server supports them.

Only the standard library is used. Temporary failures are retried. A connection that ends early is a failure, never a
short file.
"""

import http.client
import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Backend, FileInfo, download_progress
from nlu.storage.cache import Entry
from nlu.storage.places import Place, check_digest
from nlu.storage.temporary import Pauses, retried

log = logging.getLogger(__name__)

TIMEOUT_S = 30
RETRY_DELAYS_S = Pauses(0.5, 2.0, 3)
CHUNK_BYTES = 1 << 20
PARTIAL, NOT_FOUND, GONE = 206, 404, 410
TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}

T = TypeVar("T")


def fetch_url(reference: Reference) -> Path:
    """Return the file at a URL, from the cache if it is there: by sha256 if the reference has one, else by URL.

    Raises DataError if it cannot be downloaded or does not have the sha256 of the reference.
    """
    entry = file_entry(reference)
    return entry.find() or entry.fill(reference, lambda folder: _download(reference, folder / reference.name))


def file_entry(reference: Reference) -> Entry:
    """Return the cache entry of a remote file; files with the same sha256 and name share one."""
    if reference.sha256 is not None:
        return Entry.of("files", reference.sha256, reference.name)
    return Entry.of("files", reference.location)


def _download(reference: Reference, path: Path) -> Path:
    def report(error: Exception, pause_s: float) -> None:
        log.warning("%s: %s; trying again in %g s", reference.shown, reason_of(error), pause_s)

    # An OSError of another class is the disk's, such as ENOSPC.
    of_network = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, urllib.error.URLError)

    def may_pass(error: Exception) -> bool:
        return isinstance(error, of_network) and is_transient(error)

    try:
        retried(lambda: receive(reference, path), RETRY_DELAYS_S, may_pass, report=report)
    except of_network as error:
        raise DataError(
            f"{reference.what} {reference.shown} cannot be downloaded: {reason_of(error)}; correct the URL, or fetch "
            "the file by hand and give its path"
        ) from error
    check_digest(reference, path)
    return path


def receive(reference: Reference, path: Path) -> None:
    """Download a URL to a file. Raises ConnectionError if the connection ends early."""
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
    """Return whether the same request may succeed in a moment."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in TRANSIENT_STATUS
    is_network = isinstance(error, (http.client.HTTPException, OSError))
    return is_network and not isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)


def reason_of(error: Exception) -> str:
    """Return what went wrong, in the words of the server or the operating system."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", "") or error) or type(error).__name__


class Web(Backend):
    """The backend of all web servers. They do not list folders."""

    def stat(self, place: Place) -> FileInfo | None:
        def verb() -> FileInfo:
            # A GET of one byte, not a HEAD: its status tells whether the server reads in ranges.
            with _open(place, 0, 1) as response:
                _, _, total = response.headers.get("Content-Range", "").rpartition("/")
                modified = response.headers.get("Last-Modified")
                return FileInfo(
                    is_folder=False,
                    size=int(total) if response.status == PARTIAL and total.isdecimal() else None,
                    etag=(response.headers.get("ETag") or "").strip('"') or None,
                    modified_s=parsedate_to_datetime(modified).timestamp() if modified else None,
                )

        try:
            return _tried(place, verb)
        except FileNotFoundError:
            return None

    def files(self, place: Place) -> dict[str, FileInfo]:
        _refuse_folder(place)

    def children(self, place: Place) -> dict[str, FileInfo]:
        _refuse_folder(place)

    def read(self, place: Place, start: int, stop: int, info: FileInfo) -> bytes:
        def verb() -> bytes:
            with _open(place, start, stop) as response:
                # The size was given when `stat` asked, so the server supported ranges then.
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
    headers = {"User-Agent": "nlu", "Range": f"bytes={start}-{stop - 1}"}
    try:
        return urllib.request.urlopen(urllib.request.Request(place.path, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # Servers may answer any range of an empty file with 416.
        del headers["Range"]
        return urllib.request.urlopen(urllib.request.Request(place.path, headers=headers), timeout=TIMEOUT_S)


def _tried(place: Place, verb: Callable[[], T]) -> T:
    """Return the result of `verb`, retried. Raises FileNotFoundError if the server says so, else DataError."""
    try:
        return retried(verb, RETRY_DELAYS_S, is_transient)
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code in (NOT_FOUND, GONE):
            raise FileNotFoundError(place.shown) from error
        raise DataError(
            f"{place.shown} cannot be read: {reason_of(error)}; correct the URL, or try again later"
        ) from error


def _refuse_folder(place: Place) -> NoReturn:
    raise UserError(f"{place.shown}: web servers do not list folders; name each file")
