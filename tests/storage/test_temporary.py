"""One rule for failures: what is temporary, what is final, and how long anything pauses before it is tried again."""

import errno
import re
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError, EndpointConnectionError, NoCredentialsError

from nlu.config.errors import UserError
from nlu.storage.bucket import CredentialsUnavailable, Denied, Unreachable, code_of, is_absent, refusal, status_of
from nlu.storage.ledger import MirrorUnavailable, TakenOver
from nlu.storage.temporary import Pauses, is_temporary
from nlu.sweeps.faults import StorageUnavailable, machine_fault, reason_of


def answer(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoCredentialsError(), CredentialsUnavailable),
        (CredentialRetrievalError(provider="sso", error_msg="expired"), CredentialsUnavailable),
        (answer("ExpiredToken", 400), CredentialsUnavailable),
        (answer("SecurityTokenExpired", 403), CredentialsUnavailable),
        (answer("SlowDown", 503), Unreachable),
        (EndpointConnectionError(endpoint_url="http://h"), Unreachable),
        (answer("InvalidAccessKeyId", 403), Denied),
        (answer("SignatureDoesNotMatch", 403), Denied),
        (answer("InvalidToken", 400), Denied),
        (answer("AccessDenied", 403), Denied),
    ],
)
def test_a_busy_store_and_late_credentials_are_temporary_but_a_refused_key_is_final(
    error: Exception, kind: type[Exception]
) -> None:
    told = refusal("s3://b/k", "written", error, "s3")
    assert type(told) is kind
    assert is_temporary(told) == (kind is not Denied)


@pytest.mark.parametrize("error", [MirrorUnavailable("x"), StorageUnavailable("x"), Unreachable("x")])
def test_a_missing_answer_is_temporary_in_the_errors_of_every_library(error: Exception) -> None:
    assert is_temporary(error)
    other = RuntimeError("in other words")
    other.__cause__ = error
    assert is_temporary(other)


@pytest.mark.parametrize(
    "error", [UserError("a wrong value"), TakenOver("x"), OSError(errno.ENOSPC, "full"), KeyError()]
)
def test_an_error_that_a_user_must_correct_is_final(error: Exception) -> None:
    assert not is_temporary(error)


def test_a_handled_temporary_error_does_not_make_a_later_error_temporary() -> None:
    with pytest.raises(UserError) as raised:
        try:
            raise Unreachable("a moment")
        except Unreachable:
            raise UserError("a wrong value")  # noqa: B904
    assert not is_temporary(raised.value)


def test_a_full_disk_is_found_behind_the_error_that_was_raised_while_handling_it() -> None:
    def fail(*, hides: bool) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "/x")
        except OSError:
            if hides:
                raise RuntimeError("the tracker is broken") from None
            raise RuntimeError("the checkpoint is broken")  # noqa: B904

    with pytest.raises(RuntimeError) as raised:
        fail(hides=False)
    assert machine_fault(raised.value) == "No space left on device: /x"
    with pytest.raises(RuntimeError) as raised:
        fail(hides=True)
    assert machine_fault(raised.value) is None


def taken(pauses: Iterator[float], count: int) -> list[float]:
    return [next(pauses) for _ in range(count)]


def test_pauses_double_up_to_the_longest_and_are_spread_around_that() -> None:
    drawn = [list(Pauses(0.5, 3.0, 5)) for _ in range(200)]
    for place, mean in enumerate([0.5, 1.0, 2.0, 3.0, 3.0]):
        here = [pauses[place] for pauses in drawn]
        assert 0.5 * mean <= min(here) < 0.8 * mean and 1.2 * mean < max(here) <= 1.5 * mean


def test_pauses_end_after_their_number_and_without_one_never() -> None:
    assert len(list(Pauses(1.0, 1.0, 3))) == 3 and list(Pauses(1.0, 1.0, 0)) == []
    assert len(taken(iter(Pauses(1.0, 4.0)), 1000)) == 1000


ADVICE = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"),
    "oss": ("FSSPEC_OSS_KEY", "FSSPEC_OSS_SECRET", "FSSPEC_OSS_TOKEN", "OSS_ENDPOINT"),
}


@pytest.mark.parametrize("scheme", ["s3", "oss"])
def test_the_error_of_a_refused_request_names_the_variable_to_correct(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSSPEC_OSS_KEY", "known")
    key, secret, token, endpoint = ADVICE[scheme]
    for code in ("InvalidToken", "InvalidSecurity", "InvalidSecurityToken"):
        told = refusal("x", "read", answer(code, 400), scheme)
        assert type(told) is Denied and str(told) == f"x cannot be read: the token is not valid ({code}); renew {token}"
    for code in ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "SecurityTokenExpired"):
        told = refusal("x", "read", answer(code, 400), scheme)
        assert type(told) is CredentialsUnavailable
        assert str(told) == f"x cannot be read: the token has expired ({code}); renew {token}"
    for error, said, kind in [
        (answer("InvalidAccessKeyId", 403), f"does not know this access key .*; correct {key}$", Denied),
        (answer("SignatureDoesNotMatch", 403), f"wrong signature, .*; correct {secret}$", Denied),
        (answer("Odd", 401), f"correct {key} and {secret}, or grant this access key", Denied),
        (answer("Odd", 403), f"correct {key} and {secret}, or grant this access key", Denied),
        (PermissionError("no"), f": no; correct {key} and {secret}, or grant", Denied),
        (answer("Odd", 402), f"; check {endpoint}, {key}, {secret}$", Unreachable),
        (answer("Odd", 404), f"; check {endpoint}, {key}, {secret}$", Unreachable),
        (RuntimeError(), f": RuntimeError; check {endpoint}", Unreachable),
        (RuntimeError("first.\nsecond"), f": first; check {endpoint}", Unreachable),
        (ValueError("Invalid endpoint: x"), f"the endpoint is not an address; correct {endpoint}", UserError),
        (ValueError("another Invalid endpoint"), f"; check {endpoint}", Unreachable),
        (NoCredentialsError(), f"credentials are missing; set {key} and {secret} in", CredentialsUnavailable),
    ]:  # fmt: skip
        told = refusal("x", "read", error, scheme)
        assert type(told) is kind and re.search(f"^x cannot be read.*{said}", str(told)), str(told)
    monkeypatch.delenv("FSSPEC_OSS_KEY")
    for status, kind in ((403, CredentialsUnavailable if scheme == "oss" else Denied), (401, Denied)):
        assert type(refusal("x", "read", answer("AccessDenied", status), scheme)) is kind


def test_status_and_code_of_an_answer_are_found_behind_the_errors_of_a_driver() -> None:
    wrapped = OSError("in other words")
    wrapped.__cause__ = answer("NoSuchBucket", 404)
    of_oss = OSError("oss2")
    of_oss.__cause__ = type("ServerError", (Exception,), {"status": 409, "code": "FileAlreadyExists"})()
    unsent = type("RequestError", (Exception,), {"status": -2, "code": None})()
    assert [(status_of(error), code_of(error)) for error in (wrapped, of_oss, unsent, OSError())] == [
        (404, "NoSuchBucket"), (409, "FileAlreadyExists"), (None, None), (None, None),
    ]  # fmt: skip
    assert status_of(FileExistsError()) == 412
    assert [is_absent(error) for error in (wrapped, FileNotFoundError(), of_oss, OSError())] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), "Disk quota exceeded: /x"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (RuntimeError("first\n  I/O: (os error 28) \nlast"), "I/O: (os error 28)"),
        (RuntimeError("(os error 122)"), "(os error 122)"),
        (RuntimeError("(os error 5)"), "(os error 5)"),
        (RuntimeError("CUDA error: uncorrectable ECC error"), "CUDA error: uncorrectable ECC error"),
        (RuntimeError("GPU has fallen off the bus"), "GPU has fallen off the bus"),
        (RuntimeError("(os error 2)"), None),
        (OSError(errno.ENOENT, "No such file", "/x"), None),
        (RuntimeError("CUDA out of memory"), None),
    ],
)
def test_a_lack_of_the_machine_is_described_in_one_line(error: Exception, said: str | None) -> None:
    assert machine_fault(error) == said


def test_the_message_of_a_storage_is_the_first_line_of_its_most_specific_error() -> None:
    of_database = RuntimeError("a call failed")
    of_database.__cause__ = type("DBAPIError", (Exception,), {"orig": ValueError("connection refused\nLINE 1")})("sql")
    caused = RuntimeError("a call failed")
    caused.__cause__ = KeyError()
    for error, said in [
        (UserError("own words", "more"), "own words"), (of_database, "connection refused"), (caused, "KeyError"),
        (OSError("first\nsecond"), "first"), (OSError(), "OSError"),
    ]:  # fmt: skip
        assert reason_of(error) == said
    after = StorageUnavailable.after("journal:///x", OSError("gone"), 899.7)
    assert "storage is journal:///x, which has not answered for 900 s: gone; nothing is lost" in str(after)
