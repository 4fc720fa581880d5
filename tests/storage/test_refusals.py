"""What the errors of drivers become: temporary ones are tried again, and a mistake of the user ends with status 2."""

import errno
import socket
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    ReadTimeoutError,
)  # fmt: skip

from nlu.commands.io import main
from nlu.config.errors import DataError, UserError, is_temporary
from nlu.storage import refusals
from nlu.storage.locations import Place
from nlu.storage.refusals import Changed, CredentialsUnavailable, Denied, Pauses, Refused, Unreachable, asked
from tests.buckets import Server

S3, OSS, WEB = Place("s3", "b", "k"), Place("oss", "b", "k"), Place("https", "", "https://host/k")


def answer(status: int, code: str = "Odd", message: str = "said") -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "PutObject")


def oss(status: int, code: str = "Odd", message: str = "said") -> Exception:
    from oss2.exceptions import OssError

    return OssError(status, {}, b"", {"Code": code, "Message": message})


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
NO_NAME_NOW = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
MISTAKES = [
    (S3, answer(400, "InvalidBucketName"), Refused, r"said \(InvalidBucketName\); correct the address"),
    (OSS, oss(400, "InvalidBucketName"), Refused, r"said \(InvalidBucketName\); correct the address.*OSS_ENDPOINT"),
    (S3, ParamValidationError(report="Invalid bucket name"), Refused, "Invalid bucket name; correct the address"),
    (S3, answer(301, "PermanentRedirect"), Refused, "in another region .*; correct AWS_DEFAULT_REGION"),
    (S3, answer(400, "AuthorizationHeaderMalformed"), Refused, "another region .*; correct AWS_DEFAULT_REGION"),
    (OSS, oss(403, "AccessDenied", "must be addressed using the specified endpoint"), Refused, "set OSS_ENDPOINTS="),
    (S3, NoRegionError(), Refused, "correct AWS_ENDPOINT_URL"),
    (S3, ValueError("Invalid endpoint: x"), Refused, "Invalid endpoint: x; correct AWS_ENDPOINT_URL, an address such"),
    (S3, caused(EndpointConnectionError(endpoint_url="http://h"), NO_NAME), Refused, "correct AWS_ENDPOINT_URL"),
    (S3, caused(OSError("ssl"), ssl.SSLCertVerificationError()), Refused, "correct AWS_ENDPOINT_URL, an address"),
    (OSS, oss(-1, "", "The endpoint is invalid"), Refused, "endpoint is invalid; correct OSS_ENDPOINT"),
    *((S3, answer(status), Refused, "correct the address") for status in (400, 405, 409, 411, 416, 501)),
    (S3, answer(403, "InvalidAccessKeyId"), Denied, "does not know this access key .*; correct AWS_ACCESS_KEY_ID$"),
    (S3, answer(403, "SignatureDoesNotMatch"), Denied, "wrong signature, .*; correct AWS_SECRET_ACCESS_KEY$"),
    (S3, answer(400, "InvalidToken"), Denied, "token is not valid .*; renew AWS_SESSION_TOKEN$"),
    (S3, answer(403, "AccessDenied"), Denied, "or grant this access key the permission$"),
    (S3, PermissionError("no"), Denied, "no; correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or grant"),
    (WEB, answer(403), Refused, "the server answers 403 said; correct the URL"),
    (S3, answer(412), Changed, "s3://b/k changed while it was written; try again"),
]
LATE = [
    (S3, NoCredentialsError(), CredentialsUnavailable, "credentials are missing; set AWS_ACCESS_KEY_ID and"),
    (S3, CredentialRetrievalError(provider="sso", error_msg="x"), CredentialsUnavailable, "missing; set AWS_"),
    (OSS, oss(403, "AccessDenied"), CredentialsUnavailable, "missing; set FSSPEC_OSS_KEY and FSSPEC_OSS_SECRET"),
    (S3, answer(400, "ExpiredToken"), CredentialsUnavailable, "has expired .*; renew AWS_SESSION_TOKEN"),
    (S3, answer(403, "SecurityTokenExpired"), CredentialsUnavailable, "has expired"),
]
BUSY = [
    *((S3, answer(status)) for status in (408, 429, 500, 502, 503, 504)), (OSS, oss(503)), (WEB, answer(503)),
    *((S3, answer(400, code)) for code in ("RequestTimeout", "IncompleteBody", "BadDigest", "SlowDown")),
    (S3, EndpointConnectionError(endpoint_url="http://h")), (S3, ReadTimeoutError(endpoint_url="http://h")),
    (S3, caused(EndpointConnectionError(endpoint_url="http://h"), NO_NAME_NOW)), (OSS, oss(-2)),
    (S3, OSError("a broken pipe")), (WEB, ConnectionError("3 of 4 bytes came")), (S3, RuntimeError("odd")),
]  # fmt: skip


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(refusals, "time", SimpleNamespace(sleep=found.append))
    monkeypatch.setattr(refusals, "_answered", set())
    monkeypatch.delenv("FSSPEC_OSS_KEY", raising=False)
    monkeypatch.delenv("OSS_ENDPOINTS", raising=False)
    return found


def ask(place: Place, errors: list[Exception], action: str = "written", **options: Any) -> str:
    def verb() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    return asked(place, action, verb, delays_s=(0.25, 0.5), **options)


@pytest.mark.parametrize(("place", "error", "kind", "says"), [*MISTAKES, *LATE])
def test_a_mistake_is_told_at_once_with_what_to_correct(
    place: Place, error: Exception, kind: type[UserError], says: str, slept: list[float]
) -> None:
    with pytest.raises(kind, match=says) as caught:
        ask(place, [error, error])
    assert type(caught.value) is kind and slept == []
    assert is_temporary(caught.value) == (kind is CredentialsUnavailable)


@pytest.mark.parametrize(("place", "error"), BUSY)
def test_a_service_that_is_busy_or_away_is_asked_again(place: Place, error: Exception, slept: list[float]) -> None:
    assert ask(place, [error, error]) == "done" and slept == [0.25, 0.5]
    with pytest.raises(Unreachable, match=r"^the mirror cannot be written: ") as caught:
        ask(place, [error] * 3, called="the mirror")
    assert is_temporary(caught.value)


@pytest.mark.parametrize("place", [S3, OSS, WEB])
def test_a_server_that_has_answered_and_has_no_name_now_is_away(place: Place, slept: list[float]) -> None:
    error = caused(OSError("cannot connect"), NO_NAME)
    with pytest.raises(Refused):
        ask(place, [error])
    assert ask(place, []) == "done"
    assert ask(place, [error, error]) == "done" and slept == [0.25, 0.5]


@pytest.mark.parametrize(
    ("place", "error"),
    [(S3, answer(404, "NoSuchBucket")), (OSS, oss(404)), (WEB, answer(410)), (S3, FileNotFoundError())],
)
def test_what_does_not_exist_is_a_missing_file(place: Place, error: Exception, slept: list[float]) -> None:
    with pytest.raises(FileNotFoundError, match=f"^{place.shown}$"):
        ask(place, [error], action="read")
    if place.bucket:
        with pytest.raises(Refused, match="cannot be written: its bucket does not exist; create it first"):
            ask(place, [error])


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "/x"), DataError("finished")])
def test_a_full_disk_and_a_finished_message_pass_unchanged(error: Exception, slept: list[float]) -> None:
    with pytest.raises(type(error)) as caught:
        ask(S3, [error])
    assert caught.value is error


@pytest.mark.parametrize("address", ["s3://no_such!bucket/x", "s3://UPPER..case/x"])
def test_a_wrong_name_of_a_bucket_is_a_mistake_at_the_real_client(
    s3: Server, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    s3.bucket(monkeypatch)
    with pytest.raises(UserError) as caught:
        main(["ls", address])
    assert not is_temporary(caught.value)


def test_an_endpoint_that_does_not_exist_is_a_mistake_at_the_real_client(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.bucket(monkeypatch)
    for endpoint in ("http://no-such-host.invalid", "localhost:9000"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(Refused, match="correct AWS_ENDPOINT_URL"):
            main(["ls", url])


def test_pauses_double_up_to_the_longest_and_are_spread_around_that() -> None:
    drawn = [list(Pauses(0.5, 3.0, 5)) for _ in range(200)]
    for place, mean in enumerate([0.5, 1.0, 2.0, 3.0, 3.0]):
        here = [pauses[place] for pauses in drawn]
        assert 0.5 * mean <= min(here) < 0.8 * mean and 1.2 * mean < max(here) <= 1.5 * mean
