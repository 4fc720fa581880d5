"""Downloads over HTTP, with the standard library alone.

Transient failures are retried; a connection that ends early is a failure, never a short file.
"""

import http.client
import logging
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

from nlu.config.errors import DataError
from nlu.storage.backend import download_progress
from nlu.storage.cache import Entry
from nlu.storage.places import Reference
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
