"""What submitit leaves of a job: where its files lie, what it said, what it returned. Read in submitit 1.5.4.

submitit pickles what a job returns, and whoever looks into a folder would run what a stranger put there. So our jobs
return texts, numbers, lists and dictionaries only (`told`), and no file is read that names anything else.
"""

import os
import pickle
import re
import subprocess
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from nlu.config.errors import UserError
from nlu.config.submitted import JobLost
from nlu.storage.redaction import hide

TAIL_BYTES = 16_384
OF_SUBMITIT = re.compile(r"submitit (INFO|WARNING) \(")
"""begins what submitit says between the lines of a job"""
OF_A_JOB = {"SLURM_JOB_ID", "RANK"}
"""Slurm or torchrun sets one of them for each process of a job."""
PLACED = ("SLURM_", "SLURMD_", "TORCHELASTIC_")
MEETS = {
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
}  # fmt: skip
NOT_REQUEUED = "Job not requeued because"

_POPEN: Any = subprocess.Popen


class _Apart:
    """Stands for `subprocess` in submitit's module that starts local jobs: each in a session of its own, which neither
    Ctrl-C nor the end of a terminal reaches, and without the streams of whoever started it, which a pipe waits for."""

    @staticmethod
    def Popen(*arguments: Any, env: Mapping[str, str], **options: Any) -> Any:  # noqa: N802
        """Start a job."""
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return _POPEN(*arguments, env=of_a_new_job(env), start_new_session=True, **{**options, **silent})

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


class _HandsOver:
    """Stands for `subprocess` in submitit's module that calls sbatch."""

    @staticmethod
    def Popen(*arguments: Any, env: Mapping[str, str] | None = None, **options: Any) -> Any:  # noqa: N802
        """Start a command."""
        return _POPEN(*arguments, env=of_a_new_job(os.environ if env is None else env), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def start_jobs_apart() -> None:
    """Have submitit's local jobs outlive this process, whatever ends it, and no job take itself for a part of it."""
    from submitit.core import utils
    from submitit.local import local

    local.subprocess = _Apart()  # type: ignore[assignment]
    utils.subprocess = _HandsOver()  # type: ignore[assignment]


def of_a_new_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job that is started from within another inherits: nothing of which process of that this one is."""
    if not OF_A_JOB & set(environment):
        return dict(environment)
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not (name.startswith(PLACED) or name in MEETS)
    }


def result_file(folder: Path, number: str) -> Path:
    """Return the file in which the first task of a job returns; `folder` is the job's own."""
    return folder / f"{number}_0_result.pkl"


def log_files(folder: Path, number: str) -> list[Path]:
    """Return the files with what the first task of a job says, the one that the run logs to first."""
    return [folder / f"{number}_0_log.{ending}" for ending in ("err", "out")]


class JobError(RuntimeError):
    """An error that was raised in a job, with its text; the class is called like the one that was raised there."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads what consists of Python's own literals; anything else needs a name, and none is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def told(returned: Any) -> dict[str, Any]:
    """Return what a job leaves for those who follow it: plain data, without secrets."""
    if not isinstance(returned, JobReturn):
        return {"returned": _plain(returned)}
    if returned.status == JobStatus.COMPLETED:
        return {"status": returned.status.name, "returned": _plain(returned._return_value)}
    return {"status": JobStatus.FAILED.name, "raised": _told_error(returned._return_value)}


def _told_error(error: Any) -> dict[str, Any]:
    if not isinstance(error, BaseException):
        return {"kind": "RuntimeError", "text": hide(f"it returned {error!r}")}
    found: dict[str, Any] = {"kind": type(error).__name__, "text": hide(str(error))}
    if isinstance(error, UserError):
        return found | {"problems": list(error.problems), "summary": error.summary, "remedy": error.remedy}
    found["traceback"] = hide("".join(traceback.format_exception(error)))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found | ({"cause": _told_error(cause)} if cause is not None else {})


def _plain(value: Any) -> Any:
    """Return a value as Python's own literals: a number of NumPy's as a number, what is none of them as its text."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return hide(repr(value))


def read_outcome(file: Path) -> Any:
    """Return what a job returned, a JobReturn where Hydra ran it; None where it has not."""
    if not file.exists():
        return None
    try:
        with open(file, "rb") as stream:
            how, value = _PlainUnpickler(stream).load()
        if how == "success":
            return _outcome(value)
    except FileNotFoundError:
        # It was queued again meanwhile.
        return None
    except OSError:
        raise
    except Exception as problem:
        return failed(
            JobLost(f"{file} is damaged, or not written by a job of this version ({problem}); it was not loaded")
        )
    error: Exception = JobError(f"the job failed with\n{value}")
    if NOT_REQUEUED in str(value):
        error = JobLost(
            "its time was up before it had anything to save, or too often; give it more by hydra.launcher.timeout_min, "
            "or more turns by hydra.launcher.max_num_timeout"
        )
    return failed(error)


def _outcome(value: Mapping[str, Any]) -> Any:
    if "status" not in value:
        return value["returned"]
    if value["status"] != JobStatus.COMPLETED.name:
        return failed(_error(value["raised"]))
    found = JobReturn(status=JobStatus.COMPLETED)
    found.return_value = value["returned"]
    return found


def _error(raised: Mapping[str, Any]) -> Exception:
    if "problems" in raised:
        return UserError(*raised["problems"], summary=raised["summary"], remedy=raised["remedy"])
    error: Exception = JobLost(raised["text"]) if raised["kind"] == JobLost.__name__ else type(
        str(raised["kind"]), (JobError,), {}
    )(raised["text"])  # fmt: skip
    if "traceback" in raised:
        error.add_note(f"raised in the job:\n{raised['traceback']}")
    if "cause" in raised:
        error.__cause__ = _error(raised["cause"])
    return error


def failed(error: Exception) -> JobReturn:
    """Return the JobReturn of a job that ended with an error."""
    found = JobReturn(status=JobStatus.FAILED)
    found.return_value = error
    return found


def tail(files: list[Path], lines: int) -> list[str]:
    """Return the last lines of the first of the files that holds any."""
    for file in files:
        try:
            with open(file, "rb") as stream:
                stream.seek(0, 2)
                start = max(0, stream.tell() - TAIL_BYTES)
                stream.seek(start)
                text = stream.read().decode(errors="replace")
        except OSError:
            continue
        # Of a line whose beginning is cut off nobody knows whether it is the end of a secret.
        said = hide("\n".join(text.splitlines()[1 if start else 0 :])).splitlines()
        if said := [line for line in said if line.strip() and not OF_SUBMITIT.match(line)]:
            return said[-lines:]
    return []
