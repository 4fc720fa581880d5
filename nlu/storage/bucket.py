"""The contract of a bucket: one request per method, the errors it raises, and when a request is tried again.

Every method is retried if the service or the connection fails, so every method is harmless when it is executed twice.
Drivers wrap the service's response in their own exceptions; its status and error code are found among the causes.
Messages about credentials name the environment variable to correct, never its value. `nlu.storage.buckets` implements
this contract for S3 and OSS.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from nlu.config.errors import DataError, Temporary, UserError, causes
from nlu.config.variables import ENDPOINT, KEY, SECRET, TOKEN, name_of
from nlu.storage.backend import FileInfo
from nlu.storage.temporary import Pauses, retried

RETRY_DELAYS_S = Pauses(0.2, 4.0, 5)
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CHANGED = 401, 403, 404, 412
LASTING_STATUS = {400, 405, 409, 411, 412, 416, 501}
EXISTS_STATUS = {409, 412}
# These come with a status such as 400, but the cause is a slow connection or damaged content.
TRANSIENT_CODES = {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}
NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "MetadataRetrievalError",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
}
"""exceptions of botocore for missing credentials"""

T = TypeVar("T")


class Unreachable(DataError, OSError, Temporary):
    """The service did not respond, or responded with an error, on every try; a later try may succeed."""


class Changed(DataError):
    """An object was replaced or removed while it was read."""


class Denied(UserError):
    """The service rejects these credentials; the message names the variables to correct."""


class CredentialsUnavailable(Denied, Temporary):
    """Credentials are absent or expired, and may still be renewed."""


@dataclass(frozen=True)
class UploadPart:
    """A part of a multipart upload; `number` starts at 1."""

    number: int
    size: int
    etag: str
    arrived_s: float = 0.0
    """when the service received it, in seconds since 1970"""


@dataclass(frozen=True)
class Upload:
    """An unfinished multipart upload."""

    key: str
    name: str
    begun_s: float


class Bucket(ABC):
    """The bucket `name`; keys do not start with a slash.

    Errors call the object `called` if that is given, else by its address. A failed request is tried again after
    `delays_s`, by default `RETRY_DELAYS_S`.

    Every method raises Denied for rejected credentials, Unreachable if the service does not respond, Changed if an
    object has another version than expected, and FileNotFoundError if the object or the bucket does not exist.
    """

    scheme: str
    endpoint_variable: str | None = None
    """the variable with the endpoint, None for that of the scheme"""

    def __init__(self, name: str, filesystem: Any, called: str = "", delays_s: Iterable[float] | None = None):
        self.name, self._filesystem, self._called = name, filesystem, called
        self._delays_s = RETRY_DELAYS_S if delays_s is None else delays_s

    def head(self, key: str) -> FileInfo | None:
        """Return what is known of an object, None if it does not exist."""
        try:
            return self._head(key)
        except FileNotFoundError:
            return None
        except Denied:
            # The response to a HEAD lacks a body, so it cannot say which of the credentials is wrong.
            self._list_one(key)
            raise

    @abstractmethod
    def _head(self, key: str) -> FileInfo:
        """Return what is known of an object; raises FileNotFoundError if it does not exist."""

    @abstractmethod
    def _list_one(self, prefix: str) -> None:
        """List a single key, only for the errors that this raises."""

    @abstractmethod
    def entries(self, prefix: str, *, nested: bool = True) -> Iterator[tuple[str, FileInfo]]:
        """Yield the keys with this prefix in order; without `nested` up to the next slash, each folder once."""

    @abstractmethod
    def get(self, key: str, span: tuple[int, int] | None = None, etag: str | None = None) -> bytes:
        """Return an object, or its bytes `span[0]:span[1]`. Raises Changed unless it has this `etag`."""

    @abstractmethod
    def put(self, key: str, content: bytes, *, only_new: bool = False) -> None:
        """Write an object, atomically: readers see the previous one or this one.

        With `only_new` the service refuses if an object exists at this key.
        """

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object if none exists at this key; returns whether it was written.

        If a response is lost, the object may exist although this returns False or raises Unreachable. A caller that
        must know reads the object and recognizes it by an id in its content.
        """
        try:
            self.put(key, content, only_new=True)
        except (Changed, Unreachable) as error:
            # 412 arrives here as Changed. 409, the status of OSS for an existing object, arrives as Unreachable.
            if status_of(error) in EXISTS_STATUS:
                return False
            raise
        return True

    def can_copy(self, bucket: str, size: int | None) -> bool:
        """Return whether the service copies an object of this size from a bucket by itself."""
        return True

    @abstractmethod
    def copy(self, bucket: str, source: str, key: str) -> None:
        """Copy the object `source` of a bucket of the same service to `key`."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object if it exists."""

    @abstractmethod
    def create(self) -> None:
        """Create the bucket."""

    def uploads(self, key: str) -> list[str]:
        """Return the names of the unfinished uploads of exactly this key, the newest last."""
        # A bucket lists by prefix, which longer keys share.
        exact = [upload for upload in self.uploads_below(key) if upload.key == key]
        return [upload.name for upload in sorted(exact, key=lambda upload: upload.begun_s)]

    @abstractmethod
    def uploads_below(self, prefix: str) -> Iterator[Upload]:
        """Yield the unfinished uploads of keys with this prefix."""

    @abstractmethod
    def abort(self, upload: Upload) -> None:
        """Abort an upload if it exists, and delete the parts that arrived."""

    @abstractmethod
    def begin(self, key: str) -> str:
        """Begin a multipart upload; returns its name."""

    @abstractmethod
    def parts(self, key: str, upload: str) -> list[UploadPart]:
        """Return the parts of an upload that have arrived."""

    @abstractmethod
    def put_part(self, key: str, upload: str, number: int, content: bytes) -> UploadPart:
        """Write one part."""

    @abstractmethod
    def complete(self, key: str, upload: str, parts: list[UploadPart]) -> None:
        """Join the parts to the object."""

    def next_page(self, action: str, key: str, marker: dict[str, T], following: dict[str, T]) -> dict[str, T]:
        """Return `following`, the marker of the next page of a listing, after the page of `marker`.

        Raises Unreachable if the same page would follow forever.
        """
        if not following or following == marker:
            error = ConnectionError("the answer does not say where the next page begins")
            raise refusal(self._named(key), action, error, self.scheme, self.endpoint_variable) from error
        return following

    def _named(self, key: str) -> str:
        return self._called or f"{self.scheme}://{self.name}/{key}".rstrip("/")

    def tried(self, action: str, key: str, verb: Callable[[], T]) -> T:
        """Return the result of `verb`, retried while it fails temporarily; errors say that `key` cannot be `action`."""
        named = self._named(key)

        def call() -> T:
            try:
                return verb()
            # Wrong arguments of ours and finished messages pass unchanged. botocore rejects an endpoint by a ValueError
            # too.
            except (ValueError, TypeError, UserError) as error:
                if _is_invalid_endpoint(error):
                    raise refusal(named, action, error, self.scheme, self.endpoint_variable) from error
                raise
            except Exception as error:  # each driver has its own exceptions
                if is_absent(error):
                    raise FileNotFoundError(named) from error
                if status_of(error) == CHANGED:
                    raise Changed(f"{named} changed while it was {action}; try again") from error
                raise refusal(named, action, error, self.scheme, self.endpoint_variable) from error

        return retried(call, self._delays_s, _is_transient)


def _is_transient(error: Exception) -> bool:
    """Return whether the service is busy or the connection broke."""
    cause = error.__cause__
    # botocore checks parameters, such as the name of a bucket, before it sends anything, so a second try fails too.
    if not isinstance(error, Unreachable) or type(cause).__name__ == "ParamValidationError":
        return False
    return status_of(cause) not in LASTING_STATUS or code_of(cause) in TRANSIENT_CODES


def refusal(named: str, action: str, error: Exception, scheme: str, endpoint_variable: str | None = None) -> UserError:
    """Return the error to raise for a driver's error; `endpoint_variable` holds the endpoint if not the scheme's own.

    It is CredentialsUnavailable if credentials are absent or expired, Denied if they are wrong, and otherwise
    Unreachable.
    """
    service = "oss" if scheme == "oss" else "s3"
    key, secret, token, endpoint = (name_of(service, role) for role in (KEY, SECRET, TOKEN, ENDPOINT))
    endpoint = endpoint_variable or endpoint
    status, code = status_of(error), code_of(error)
    start = f"{named} cannot be {action}: "
    if _is_invalid_endpoint(error):
        return UserError(f"{start}the endpoint is not an address; correct {endpoint}, such as http://localhost:9000")
    has_none = any(type(cause).__name__ in NO_CREDENTIALS for cause in causes(error))
    # Without a key, ossfs sends anonymous requests, which the service answers with 403.
    if has_none or (scheme == "oss" and status == FORBIDDEN and not os.environ.get(key)):
        return CredentialsUnavailable(f"{start}credentials are missing; set {key} and {secret} in the environment")
    if "addressed using the specified endpoint" in str(error):
        # OSS refuses requests for a bucket of another region in this way.
        return UserError(f"{start}the bucket is in another region; set OSS_ENDPOINTS=BUCKET=REGION in the environment")
    # Codes before the status: several of them come with 403, but each has its own remedy.
    match code:
        case "InvalidAccessKeyId":
            return Denied(f"{start}the service does not know this access key ({code}); correct {key}")
        case "SignatureDoesNotMatch":
            return Denied(f"{start}the secret does not fit the access key (wrong signature, {code}); correct {secret}")
        case "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "SecurityTokenExpired":
            return CredentialsUnavailable(f"{start}the token has expired ({code}); renew {token}")
        case "InvalidToken" | "InvalidSecurity" | "InvalidSecurityToken":
            return Denied(f"{start}the token is not valid ({code}); renew {token}")
    reason = next(iter(str(error).strip().splitlines()), "").rstrip(".") or type(error).__name__
    if isinstance(error, PermissionError) or status in (UNAUTHORIZED, FORBIDDEN):
        return Denied(f"{start}{reason}; correct {key} and {secret}, or grant this access key the permission")
    return Unreachable(f"{start}{reason}; check {endpoint}, {key}, {secret}")


def _is_invalid_endpoint(error: Exception) -> bool:
    """Return whether the driver rejects the endpoint; botocore raises a plain ValueError for that."""
    return isinstance(error, ValueError) and str(error).startswith("Invalid endpoint")


def is_absent(error: Exception) -> bool:
    """Return whether the service says that the object or bucket does not exist."""
    return isinstance(error, FileNotFoundError) or status_of(error) == NOT_FOUND


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status behind a driver's error: a FileExistsError or OSError caused by one of boto or oss2."""
    found = (status for status, _ in _answers(error) if isinstance(status, int) and status > 0)
    return next(found, CHANGED if isinstance(error, FileExistsError) else None)


def code_of(error: BaseException | None) -> str | None:
    """Return the service's name of an error, such as NoSuchBucket; None if the driver does not give it."""
    return next((code for _, code in _answers(error) if isinstance(code, str)), None)


def _answers(error: BaseException | None) -> Iterator[tuple[object, object]]:
    """Yield status and code of an error and its causes, in the forms of botocore and of oss2."""
    for cause in causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            yield response.get("ResponseMetadata", {}).get("HTTPStatusCode"), response.get("Error", {}).get("Code")
        else:
            yield getattr(cause, "status", None), getattr(cause, "code", None)


def etag_of(text: str | None) -> str | None:
    """Return an etag without its quotes, None for an empty one."""
    return text.strip('"') or None if text else None


def whole(content: bytes, size: int) -> bytes:
    """Return the content. Raises ConnectionError unless it has `size` bytes."""
    if len(content) != size:
        raise ConnectionError(f"{len(content)} of {size} bytes came")
    return content
