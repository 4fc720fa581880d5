"""The contract of a bucket: one request per method, what it raises, and when a request is tried again.

Each method is retried if the service or the connection fails, so each is harmless when it is done twice. Drivers wrap
answers of the service in their own exceptions; the status and code are found behind them. Messages about wrong
credentials name the variable to correct, never its value. `nlu.storage.buckets` implements S3 and OSS.
"""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from nlu.config.errors import DataError, UserError
from nlu.storage.backend import Found
from nlu.storage.environment import ENDPOINT, KEY, SECRET, TOKEN, name_of
from nlu.storage.temporary import Pauses, Temporary, causes

RETRY_DELAYS_S = Pauses(0.2, 4.0, 5)
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CHANGED = 401, 403, 404, 412
UNKNOWN_KEY = {"InvalidAccessKeyId"}
WRONG_SECRET = {"SignatureDoesNotMatch"}
WRONG_TOKEN = {"InvalidToken", "InvalidSecurity", "InvalidSecurityToken"}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "SecurityTokenExpired"}
NO_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "MetadataRetrievalError",
    "TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError",
}  # fmt: skip
"""exceptions of botocore that say so"""
VARIABLES = {
    scheme: tuple(name_of(scheme, role) for role in (KEY, SECRET, TOKEN, ENDPOINT)) for scheme in ("s3", "oss")
}
"""of each scheme: where its key, secret, token and endpoint come from"""


class Unreachable(DataError, OSError, Temporary):
    """The store did not answer, or not as it should, however often it was asked: it may another time."""


class Changed(DataError):
    """What is read is not any more what it was when it was looked at."""


class Denied(UserError):
    """The store knows or allows these credentials not; the sentence names the variables they come from."""


class CredentialsAway(Denied, Temporary):
    """There are no credentials, or they have expired: whoever renews them may be late."""


def refusal(named: str, action: str, error: Exception, scheme: str) -> UserError:
    """What to raise for a driver's error: CredentialsAway where there are no credentials now, Denied where they are
    wrong, else Unreachable."""
    if isinstance(error, UserError):
        return error
    key, secret, token, endpoint = VARIABLES["oss" if scheme == "oss" else "s3"]
    status, code = status_of(error), code_of(error)
    start = f"{named} cannot be {action}: "
    if is_no_endpoint(error):
        return UserError(f"{start}the endpoint is no address; correct {endpoint}, such as http://localhost:9000")
    if _has_none(error) or (scheme == "oss" and status == FORBIDDEN and not os.environ.get(key)):
        return CredentialsAway(f"{start}there are no credentials; set {key} and {secret} in the environment")
    if code in UNKNOWN_KEY:
        return Denied(f"{start}the store does not know this access key ({code}); correct {key}")
    if code in WRONG_SECRET:
        return Denied(f"{start}the secret does not fit the access key (wrong signature, {code}); correct {secret}")
    if code in EXPIRED:
        return CredentialsAway(f"{start}the token has expired ({code}); renew {token}")
    if code in WRONG_TOKEN:
        return Denied(f"{start}the token is not valid ({code}); renew {token}")
    if isinstance(error, PermissionError) or status in (UNAUTHORIZED, FORBIDDEN):
        return Denied(
            f"{start}{_reason(error)}; correct {key} and {secret}, or have that access key granted the right to do so"
        )
    return Unreachable(f"{start}{_reason(error)}; check {endpoint}, {key}, {secret}")


def is_no_endpoint(error: Exception) -> bool:
    """Whether the driver takes the endpoint for no address; botocore has no exception of its own for that."""
    return isinstance(error, ValueError) and str(error).startswith("Invalid endpoint")


def is_absent(error: Exception) -> bool:
    """Whether the store says that there is no such thing."""
    return isinstance(error, FileNotFoundError) or status_of(error) == NOT_FOUND


def status_of(error: Exception) -> int | None:
    """The HTTP status of the answer behind a driver's error: FileExistsError or OSError, caused by boto's or oss2's."""
    for cause in causes(error):
        response, status = getattr(cause, "response", None), getattr(cause, "status", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int) and status > 0:
            return status
    return CHANGED if isinstance(error, FileExistsError) else None


def code_of(error: Exception) -> str | None:
    """The store's own name for what went wrong, such as NoSuchBucket; None where the driver tells none."""
    for cause in causes(error):
        response, code = getattr(cause, "response", None), getattr(cause, "code", None)
        if isinstance(response, dict):
            code = response.get("Error", {}).get("Code")
        if isinstance(code, str):
            return code
    return None


def _has_none(error: Exception) -> bool:
    """Whether the driver found no credentials at all."""
    return any(type(cause).__name__ in NO_CREDENTIALS for cause in causes(error))


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


log = logging.getLogger(__name__)

LASTING_STATUS = {400, 405, 409, 411, 412, 416, 501}
STANDS_STATUS = {409, 412}
TRANSIENT_CODES = {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}

T = TypeVar("T")


@dataclass(frozen=True)
class UploadPart:
    """A part of an upload; they count from 1."""

    number: int
    size: int
    etag: str
    arrived_s: float = 0.0
    """when the store had it, seconds since 1970"""


@dataclass(frozen=True)
class Upload:
    """An upload in parts that was begun and not ended."""

    key: str
    name: str
    begun_s: float


class Bucket(ABC):
    """The bucket `name` of a store; keys have no slash in front. Errors call what was asked for `called`, if given.

    `delays_s` are the pauses between the tries of a request, `RETRY_DELAYS_S` if not given.

    Every verb raises Denied for credentials that are refused, Unreachable where the store does not answer, Changed
    where an object is not the one that was asked for, FileNotFoundError where it or the bucket is not there.
    """

    scheme: str

    def __init__(self, name: str, filesystem: Any, called: str = "", delays_s: Iterable[float] | None = None):
        self.name, self._filesystem, self._called = name, filesystem, called
        self._delays_s = RETRY_DELAYS_S if delays_s is None else delays_s

    @abstractmethod
    def head(self, key: str) -> Found | None:
        """What the store says of an object; None where there is none."""

    @abstractmethod
    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, Found]]:
        """Every key that begins with the prefix, in order; not `nested`: up to the next slash, folders once."""

    @abstractmethod
    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        """The object, or its bytes from the first of `span` up to the second; it must still have that etag."""

    @abstractmethod
    def put(self, key: str, content: bytes) -> None:
        """Write an object; readers see the former or this one."""

    @abstractmethod
    def create_object(self, key: str, content: bytes) -> None:
        """Write an object on the condition that none stands there."""

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object where none stands; returns whether it was written.

        Where an answer is lost the object may stand although False is returned or Unreachable raised: whoever must know
        reads it, and finds by an identity in it whose it is.
        """
        try:
            self.create_object(key, content)
        except (Changed, Unreachable) as error:
            if status_of(error) in STANDS_STATUS:
                return False
            raise
        return True

    @abstractmethod
    def copy(self, bucket: str, source: str, key: str) -> None:
        """Copy an object within the store."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, or nothing where there is none."""

    @abstractmethod
    def create(self) -> None:
        """Make the bucket."""

    def uploads(self, key: str) -> list[str]:
        """The uploads that were begun for exactly this key, the newest last."""
        exact = [upload for upload in self.uploads_below(key) if upload.key == key]
        return [upload.name for upload in sorted(exact, key=lambda upload: upload.begun_s)]

    @abstractmethod
    def uploads_below(self, prefix: str) -> Iterator[Upload]:
        """The uploads that were begun for keys with this prefix."""

    @abstractmethod
    def abort(self, upload: Upload) -> None:
        """Give up an upload, with the parts that have arrived; or nothing where there is none."""

    @abstractmethod
    def begin(self, key: str) -> str:
        """Begin an upload of several parts; returns its name."""

    @abstractmethod
    def parts(self, key: str, upload: str) -> list[UploadPart]:
        """What has arrived of an upload."""

    @abstractmethod
    def put_part(self, key: str, upload: str, number: int, content: bytes) -> UploadPart:
        """Write a part."""

    @abstractmethod
    def complete(self, key: str, upload: str, parts: list[UploadPart]) -> None:
        """Make the object of its parts."""

    def tried(self, action: str, key: str, verb: Callable[[], T]) -> T:
        """What `verb` returns, tried again where it fails for a while; errors say that the key cannot be `action`."""
        named = self._called or f"{self.scheme}://{self.name}/{key}".rstrip("/")
        for delay_s in (*self._delays_s, None):
            try:
                return verb()
            except (ValueError, TypeError, UserError) as error:
                if is_no_endpoint(error):
                    raise refusal(named, action, error, self.scheme) from error
                raise
            except Exception as error:  # each driver has exceptions of its own
                if is_absent(error):
                    raise FileNotFoundError(named) from error
                if status_of(error) == CHANGED:
                    raise Changed(f"{named} changed while it was {action}; try again") from error
                reason = refusal(named, action, error, self.scheme)
                if delay_s is None or not _is_transient(error, reason):
                    raise reason from error
                log.debug("%s; trying again in %g s", reason, delay_s)
                time.sleep(delay_s)
        raise AssertionError


def _is_transient(error: Exception, reason: Exception) -> bool:
    """Whether the same may go well in a moment: the store is busy, or the way to it broke."""
    if isinstance(reason, Denied) or type(error).__name__ == "ParamValidationError":
        return False
    return status_of(error) not in LASTING_STATUS or code_of(error) in TRANSIENT_CODES


def etag_of(text: str | None) -> str | None:
    return text.strip('"') or None if text else None


def whole(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise ConnectionError(f"{len(content)} of {size} bytes came")
    return content
