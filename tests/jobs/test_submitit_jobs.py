"""What a job leaves for those who follow it: plain data that comes back as it was, and the last lines of its log."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.utils import JobReturn, JobStatus

from nlu.config.entry.grid import JobLost
from nlu.config.errors import UserError
from nlu.jobs.submitit_jobs import failed, read_outcome, to_plain

SECRET = "https://me:hunter2@host/x"
SHOWN = "https://***@host/x"


def left(tmp_path: Path, returned: Any, how: str = "success") -> Any:
    """Return the stored result of a job as it is read back."""
    (tmp_path / "result.pkl").write_bytes(pickle.dumps((how, to_plain(returned) if how == "success" else returned)))
    return read_outcome(tmp_path / "result.pkl")


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (None, None), (True, True), (3, 3), (0.5, 0.5), (np.float32(0.5), 0.5), (np.int64(3), 3), ("x", "x"),
        (SECRET, SHOWN), ({"a": (1, SECRET), 2: None}, {"a": [1, SHOWN], "2": None}), (Path("/x"), "PosixPath('/x')"),
    ],
)  # fmt: skip
def test_the_result_of_a_job_comes_back_as_plain_data_without_secrets(
    tmp_path: Path, returned: Any, found: Any
) -> None:
    assert left(tmp_path, returned) == found and type(left(tmp_path, returned)) is type(found)
    completed = JobReturn(status=JobStatus.COMPLETED)
    completed.return_value = returned
    again = left(tmp_path, completed)
    assert (again.status, again.return_value) == (JobStatus.COMPLETED, found), "an integer of Hydra's is no exit status"


def raised(error: Exception, cause: Exception | None = None, *, hides: bool = False) -> Exception:
    try:
        try:
            if cause is not None:
                raise cause
        except Exception:
            if hides:
                raise error from None
            raise error  # noqa: B904
        raise error
    except Exception as found:
        return found


def test_an_error_of_a_job_comes_back_with_its_type_and_cause(tmp_path: Path) -> None:
    inner = raised(ValueError(f"no {SECRET}"), KeyError("deep"))
    found = left(tmp_path, failed(inner))
    assert found.status == JobStatus.FAILED
    error = found._return_value
    assert (type(error).__name__, str(error)) == ("ValueError", f"no {SHOWN}")
    assert type(error.__cause__).__name__ == "KeyError" and error.__cause__.__cause__ is None
    assert left(tmp_path, failed(raised(ValueError("x"), KeyError("y"), hides=True)))._return_value.__cause__ is None
    user = left(tmp_path, failed(UserError("one", "two", summary="both", remedy="correct them")))._return_value
    assert type(user) is UserError and (list(user.problems), user.summary, user.remedy) == (
        ["one", "two"], "both", "correct them",
    )  # fmt: skip
    assert type(left(tmp_path, failed(JobLost("gone")))._return_value) is JobLost
    assert str(left(tmp_path, failed(7))._return_value) == "it returned 7"  # type: ignore[arg-type]
