"""One rule for failures: what is temporary, what is final, and how long anything pauses before it is tried again."""

import errno

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError, EndpointConnectionError, NoCredentialsError

from nlu.config.errors import UserError, is_temporary
from nlu.storage.bucket import CredentialsUnavailable, Denied, Unreachable, refusal
from nlu.storage.ledger import MirrorUnavailable, TakenOver
from nlu.storage.temporary import Pauses
from nlu.sweeps.faults import StorageUnavailable, machine_fault


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


def test_pauses_double_up_to_the_longest_and_are_spread_around_that() -> None:
    drawn = [list(Pauses(0.5, 3.0, 5)) for _ in range(200)]
    for place, mean in enumerate([0.5, 1.0, 2.0, 3.0, 3.0]):
        here = [pauses[place] for pauses in drawn]
        assert 0.5 * mean <= min(here) < 0.8 * mean and 1.2 * mean < max(here) <= 1.5 * mean


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
