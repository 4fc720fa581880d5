"""What the drivers of object stores raise, and what it means: not there, not allowed, or not now.

Drivers wrap what the store answers in exceptions of their own; its status and code are found behind them. What is said
of wrong credentials names the variable to mend, never its value.
"""

import os

from nlu.config.errors import DataError, UserError
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
