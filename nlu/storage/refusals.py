"""The errors of remote storage: what drivers raise, in our classes and words.

An error is temporary if the same request may succeed later without any change: the service does not answer, is busy, or
credentials are absent or expired. Every other refusal is a mistake to correct, such as a wrong name of a bucket.
Drivers wrap an answer in their own exceptions; its status and code are found among the causes. Messages name the
variable of the environment to correct, never its value.
"""

import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from nlu.config.errors import DataError, Temporary, UserError, causes
from nlu.config.variables import ENDPOINT, KEY, SECRET, TOKEN, name_of
from nlu.storage.filesystems import endpoint_of
from nlu.storage.places import READ_ONLY, Place
from nlu.storage.temporary import Pauses, retried

RETRY_DELAYS_S = Pauses(0.2, 4.0, 5)
UNAUTHORIZED, FORBIDDEN, CHANGED, NOT_IMPLEMENTED = 401, 403, 412, 501
ABSENT_STATUS = {404, 410}
BUSY_STATUS = {408, 425, 429}
ELSEWHERE_STATUS = {301, 307, 308}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""errors of a disk to which a file is fetched"""
EXISTS_STATUS = {409, 412}
"""of a refused conditional put; OSS answers 409"""
# These come with a status such as 400, but the cause is a slow connection or damaged content.
TRANSIENT_CODES = {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}
NO_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "MetadataRetrievalError",
    "TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError",
}  # fmt: skip
"""exceptions of botocore for missing credentials"""
ON_THE_WAY = {"HTTPClientError", "ConnectionError", "IncompleteReadError", "ChecksumError", "FlexibleChecksumError"}
"""exceptions of botocore for a request that was sent; its other ones say that it could not be made"""
REFUSED_BY_OSS2 = -1
"""the status of a request that oss2 does not make"""
REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "InvalidLocationConstraint"}

T = TypeVar("T")


class Unreachable(DataError, OSError, Temporary):
    """The service did not answer, or was busy, on every try; a later try may succeed."""


class Changed(DataError):
    """A file was replaced or removed while it was read."""


class Refused(UserError):
    """The service or its driver refuses a request, and would refuse it again."""


class Denied(Refused):
    """The service rejects these credentials; the message names the variables to correct."""


class CredentialsUnavailable(Denied, Temporary):
    """Credentials are absent or expired, and may still be renewed."""


def asked(
    place: Place, action: str, verb: Callable[[], T], *, called: str = "", delays_s: Iterable[float] | None = None
) -> T:
    """Return the result of a request for a remote place, tried again after `delays_s`, by default RETRY_DELAYS_S.

    Every request may be executed twice. Errors say that the place, or what it is `called`, cannot be `action`. Raises
    Unreachable, Denied or another Refused, Changed, and FileNotFoundError if the object or its bucket does not exist.
    """

    def call() -> T:
        try:
            return verb()
        except Exception as error:  # each driver has its own exceptions
            if isinstance(error, UserError) or isinstance(error, OSError) and error.errno in FULL:
                raise
            raise told(place, action, error, called) from error

    return retried(call, RETRY_DELAYS_S if delays_s is None else delays_s, lambda error: isinstance(error, Unreachable))


def told(place: Place, action: str, error: Exception, called: str = "") -> Exception:
    """Return the error to raise for the one of a driver."""
    named, status, code = called or place.shown, status_of(error), code_of(error)
    start = f"{named} cannot be {action}: "
    if status in ABSENT_STATUS or (status is None and isinstance(error, FileNotFoundError)):
        return FileNotFoundError(named)
    if status == CHANGED:
        return Changed(f"{named} changed while it was {action}; try again")
    reason = _reason(error)
    if place.scheme in READ_ONLY:
        kind, remedy = (Unreachable, "try again later") if _is_passing(error) else (Refused, "correct the URL")
        return kind(f"{start}{f'the server answers {status} ' if status else ''}{reason}; {remedy}")
    service = "oss" if place.scheme == "oss" else "s3"
    key, secret, token, endpoint = (name_of(service, role) for role in (KEY, SECRET, TOKEN, ENDPOINT))
    if service == "oss":
        endpoint = endpoint_of(place.bucket)[1]
    if "addressed using the specified endpoint" in str(error):
        return Refused(f"{start}the bucket is in another region; set OSS_ENDPOINTS=BUCKET=REGION in the environment")
    has_none = any(type(cause).__name__ in NO_CREDENTIALS for cause in causes(error))
    # Without a key, ossfs sends anonymous requests, which the service answers with 403.
    if has_none or (service == "oss" and status == FORBIDDEN and not os.environ.get(key)):
        return CredentialsUnavailable(f"{start}credentials are missing; set {key} and {secret} in the environment")
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
    if status in ELSEWHERE_STATUS or code in REGION_CODES:
        return Refused(f"{start}the bucket is in another region ({reason}); correct AWS_DEFAULT_REGION or {endpoint}")
    if isinstance(error, PermissionError) or status in (UNAUTHORIZED, FORBIDDEN):
        return Denied(f"{start}{reason}; correct {key} and {secret}, or grant this access key the permission")
    if _is_passing(error):
        return Unreachable(f"{start}{reason}; check {endpoint}, {key}, {secret}")
    if status is None and not _is_parameter(error):
        return Refused(f"{start}{reason}; correct {endpoint}, an address such as http://localhost:9000")
    return Refused(f"{start}{reason}{f' ({code})' if code else ''}; correct the address, or check {endpoint}")


def _is_passing(error: Exception) -> bool:
    """Return whether the same request may succeed in a moment."""
    status = status_of(error)
    if code_of(error) in TRANSIENT_CODES or status in BUSY_STATUS:
        return True
    if status is not None:
        return status >= 500 and status != NOT_IMPLEMENTED
    for cause in causes(error):
        classes = {each.__name__ for each in type(cause).__mro__}
        is_unmade = "BotoCoreError" in classes and not classes & ON_THE_WAY
        if is_unmade or getattr(cause, "status", None) == REFUSED_BY_OSS2:
            return False
    behind = list(causes(error, with_context=True))
    has_no_host = any(isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME for cause in behind)
    is_untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in behind)
    return not (has_no_host or is_untrusted or isinstance(error, (ValueError, TypeError)))


def _is_parameter(error: Exception) -> bool:
    return any(type(cause).__name__ == "ParamValidationError" for cause in causes(error))


def _reason(error: Exception) -> str:
    """Return what went wrong in one line, in the words of the service if it gave any."""
    words = (message for _, _, message in _answers(error))
    said = next((text for text in words if text and isinstance(text, str)), str(error))
    return " ".join(said.split())[:300].rstrip(".") or type(error).__name__


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status behind a driver's error, None if no answer came."""
    found = (status for status, _, _ in _answers(error) if isinstance(status, int) and status > 0)
    return next(found, CHANGED if isinstance(error, FileExistsError) else None)


def code_of(error: BaseException | None) -> str | None:
    """Return the service's name of an error, such as NoSuchBucket; None if the driver does not give it."""
    return next((code for _, code, _ in _answers(error) if isinstance(code, str)), None)


def _answers(error: BaseException | None) -> Iterator[tuple[object, object, object]]:
    """Yield status, code and message of an error and its causes, in the forms of botocore, and of oss2 and aiohttp."""
    for cause in causes(error):
        if isinstance(answer := getattr(cause, "response", None), dict):
            said = answer.get("Error", {})
            yield answer.get("ResponseMetadata", {}).get("HTTPStatusCode"), said.get("Code"), said.get("Message")
        else:
            yield getattr(cause, "status", None), vars(cause).get("code"), vars(cause).get("message")
