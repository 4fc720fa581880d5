"""Failures of operations, above all of remote storage: our classes and words for them, and how they are tried again.

A failure is temporary if the same operation may succeed later without any change to the command: the service does not
answer, is busy, or credentials are absent or expired. The code that raises an error decides this by its class
(`nlu.config.errors.Temporary`). Tries are bounded, by count or by time; after that the error is raised, and a job
leaves its work to be continued (exit status 75).

Every other refusal is a mistake to correct, such as a wrong name of a bucket. Messages name the variable of the
environment to correct, never its value.
"""

import errno
import itertools
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from nlu.config.errors import DataError, Temporary, UserError, causes
from nlu.config.redaction import ENDPOINT, KEY, SECRET, TOKEN, name_of
from nlu.storage.filesystems import endpoint_of
from nlu.storage.locations import READ_ONLY, Place

log = logging.getLogger(__name__)

T = TypeVar("T")
_SPREAD = 0.5
_random = random.SystemRandom()
"""A seeded generator would give the same numbers to all forks, which would then return together."""

CHANGED, NOT_IMPLEMENTED = 412, 501
ABSENT, BUSY, DENIED, ELSEWHERE = {404, 410}, {408, 425, 429}, {401, 403}, {301, 307, 308}
"""what the statuses of an answer say"""
EXISTS = {409, CHANGED}
"""of a refused conditional put; OSS answers 409"""
# These come with a status such as 400, but the cause is a slow connection or damaged content.
TRANSIENT_CODES = {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}
REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "InvalidLocationConstraint"}
OF_CREDENTIALS = ("NoCredentials", "PartialCredentials", "CredentialRetrieval", "MetadataRetrieval", "TokenRetrieval",
                  "SSOTokenLoad", "UnauthorizedSSOToken")  # fmt: skip
"""begin the names of botocore's exceptions for missing credentials"""
ON_THE_WAY = {"HTTPClientError", "ConnectionError", "IncompleteReadError", "ChecksumError", "FlexibleChecksumError"}
"""botocore's exceptions for a request that was sent; its other ones say that it could not be made"""
UNMADE = -1
"""the status of a request that oss2 does not make"""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""errors of a disk to which a file is fetched"""
_answered: set[tuple[str, str]] = set()
"""servers that this process has reached: a name of theirs that is unknown now is a fault on the way"""


@dataclass(frozen=True)
class Pauses:
    """The pauses between tries, in seconds. Iterating yields one pause for each failed try.

    The first is `first_s`; they double up to `longest_s`, and each is spread by half of its length. There are `count`
    pauses, or infinitely many if it is None: the caller then sets a bound in time.
    """

    first_s: float
    longest_s: float
    count: int | None = None

    def __iter__(self) -> Iterator[float]:
        pause_s = self.first_s
        for _ in itertools.count() if self.count is None else range(self.count):
            # Only the yielded value is spread, so that the spread does not add up.
            yield pause_s * _random.uniform(1 - _SPREAD, 1 + _SPREAD)
            pause_s = min(2 * pause_s, self.longest_s)


def retried(call: Callable[[], T], pauses_s: Iterable[float], is_transient: Callable[[Exception], bool]) -> T:
    """Return the result of `call`, called again after each pause if its error `is_transient`; raises the last one."""
    remaining_s = iter(pauses_s)
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or (pause_s := next(remaining_s, None)) is None:
                raise
            log.debug("%s; trying again in %g s", error, pause_s)
        time.sleep(pause_s)


RETRY_DELAYS_S = Pauses(0.2, 4.0, 5)


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
    Unreachable, Denied or another Refused, Changed, and FileNotFoundError if what is not to be written does not exist.
    """

    def call() -> T:
        try:
            result = verb()
            _answered.add(_server_of(place))
            return result
        except Exception as error:  # each driver has its own exceptions
            if isinstance(error, UserError) or isinstance(error, OSError) and error.errno in FULL:
                raise
            raise told(place, action, error, called or place.shown) from error

    return retried(call, RETRY_DELAYS_S if delays_s is None else delays_s, lambda error: isinstance(error, Unreachable))


def told(place: Place, action: str, error: Exception, named: str) -> Exception:
    """Return the error to raise for the one of a driver."""
    status, code, reason = answer_of(error)
    start = f"{named} cannot be {action}: "
    if status in ABSENT or (status is None and isinstance(error, FileNotFoundError)):
        missing = f"{start}its bucket does not exist; create it first"
        return Refused(missing) if action == "written" else FileNotFoundError(named)
    if status == CHANGED:
        return Changed(f"{named} changed while it was {action}; try again")
    is_passing = _is_passing(place, error, status, code)
    if place.scheme in READ_ONLY:
        said = f"{start}{f'the server answers {status} ' if status else ''}{reason}; "
        return Unreachable(f"{said}try again later") if is_passing else Refused(f"{said}correct the URL")
    service = "oss" if place.scheme == "oss" else "s3"
    key, secret, token, endpoint = (name_of(service, role) for role in (KEY, SECRET, TOKEN, ENDPOINT))
    if service == "oss":
        endpoint = endpoint_of(place.bucket)[1]
    if "addressed using the specified endpoint" in str(error):
        return Refused(f"{start}the bucket is in another region; set OSS_ENDPOINTS=BUCKET=REGION in the environment")
    has_none = any(type(cause).__name__.startswith(OF_CREDENTIALS) for cause in causes(error))
    # Without a key, ossfs sends anonymous requests, which the service refuses.
    if has_none or (service == "oss" and status in DENIED and not os.environ.get(key)):
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
    if status in ELSEWHERE or code in REGION_CODES:
        return Refused(f"{start}the bucket is in another region ({reason}); correct AWS_DEFAULT_REGION or {endpoint}")
    if isinstance(error, PermissionError) or status in DENIED:
        return Denied(f"{start}{reason}; correct {key} and {secret}, or grant this access key the permission")
    if is_passing:
        return Unreachable(f"{start}{reason}; check {endpoint}, {key}, {secret}")
    if status is None and type(error).__name__ != "ParamValidationError":
        return Refused(f"{start}{reason}; correct {endpoint}, an address such as http://localhost:9000")
    return Refused(f"{start}{reason}{f' ({code})' if code else ''}; correct the address, or check {endpoint}")


def _server_of(place: Place) -> tuple[str, str]:
    return place.scheme, place.bucket or urlsplit(place.path).netloc


def _is_passing(place: Place, error: Exception, status: int | None, code: str | None) -> bool:
    """Return whether the same request may succeed in a moment."""
    if status is not None or code in TRANSIENT_CODES:
        return code in TRANSIENT_CODES or status in BUSY or (status or 0) >= 500 and status != NOT_IMPLEMENTED
    for cause in causes(error):
        classes = {each.__name__ for each in type(cause).__mro__}
        if "BotoCoreError" in classes and not classes & ON_THE_WAY or getattr(cause, "status", 0) == UNMADE:
            return False
    behind = list(causes(error, with_context=True))
    has_no_host = any(isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME for cause in behind)
    # By its name: a dry run imports this module, and not ssl.
    is_untrusted = any(type(cause).__name__ == "SSLCertVerificationError" for cause in behind)
    is_mistaken = (has_no_host or is_untrusted) and _server_of(place) not in _answered
    return not (is_mistaken or isinstance(error, (ValueError, TypeError)))


def answer_of(error: BaseException) -> tuple[int | None, str | None, str]:
    """Return status, code and words of a service, found among the causes in the forms of botocore, oss2 and aiohttp.

    The status is None if no answer came; the words are then those of the driver, on one line.
    """
    status, code, said = None, None, ""
    for cause in causes(error):
        if isinstance(answer := getattr(cause, "response", None), dict):
            given = answer.get("Error", {})
            found = answer.get("ResponseMetadata", {}).get("HTTPStatusCode"), given.get("Code"), given.get("Message")
        else:
            found = getattr(cause, "status", None), vars(cause).get("code"), vars(cause).get("message")
        if status is None and isinstance(found[0], int) and found[0] > 0:
            status = found[0]
        code = code or (found[1] if isinstance(found[1], str) else None)
        said = said or (found[2] if isinstance(found[2], str) else "")
    words = " ".join((said or str(error)).split()).rstrip(".") or type(error).__name__
    words = f"{words[:160]}..." if len(words) > 160 else words
    return CHANGED if status is None and isinstance(error, FileExistsError) else status, code, words
