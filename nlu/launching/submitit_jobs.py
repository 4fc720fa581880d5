"""What submitit leaves of a job: where its files lie, what it said, what it returned. Read in submitit 1.5.4."""

import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from nlu.config.entry.app import find_plugins
from nlu.config.submitted import JobLost

TAIL_BYTES = 16_384
OF_SUBMITIT = re.compile(r"submitit (INFO|WARNING) \(")
"""begins what submitit says between the lines of a job"""
NOT_REQUEUED = "Job not requeued because"


class _Apart:
    """Stands for `subprocess` in submitit's module that starts local jobs: each in a session of its own, which neither
    Ctrl-C nor the end of a terminal reaches, and without the streams of whoever started it, which a pipe waits for."""

    Popen = staticmethod(
        partial(
            subprocess.Popen, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def start_jobs_apart() -> None:
    """Have submitit's local jobs outlive this process, whatever ends it."""
    from submitit.local import local

    local.subprocess = _Apart()  # type: ignore[assignment]


def result_file(folder: Path, number: str) -> Path:
    """Return the file in which the first task of a job returns; `folder` is the job's own."""
    return folder / f"{number}_0_result.pkl"


def log_files(folder: Path, number: str) -> list[Path]:
    """Return the files with what the first task of a job says, the one that the run logs to first."""
    return [folder / f"{number}_0_log.{ending}" for ending in ("err", "out")]


def read_outcome(file: Path) -> JobReturn | None:
    """Return what a job returned; None where it has not."""
    from submitit.core import utils

    if not file.exists():
        return None
    # What Hydra returns names the classes of its plugins.
    find_plugins()
    how, value = utils.pickle_load(file)
    if how == "success":
        return value
    error: Exception = utils.FailedJobError(f"the job failed with\n{value}")
    if NOT_REQUEUED in str(value):
        error = JobLost(
            "its time was up before it had anything to save, or too often; give it more by hydra.launcher.timeout_min, "
            "or more turns by hydra.launcher.max_num_timeout"
        )
    return failed(error)


def failed(error: Exception, overrides: Any = None) -> JobReturn:
    """Return the JobReturn of a job that ended with an error."""
    found = JobReturn(overrides=overrides, status=JobStatus.FAILED)
    found.return_value = error
    return found


def tail(files: list[Path], lines: int) -> list[str]:
    """Return the last lines of the first of the files that holds any."""
    for file in files:
        try:
            with open(file, "rb") as stream:
                stream.seek(0, 2)
                stream.seek(max(0, stream.tell() - TAIL_BYTES))
                said = stream.read().decode(errors="replace").splitlines()
        except OSError:
            continue
        if said := [line for line in said if line.strip() and not OF_SUBMITIT.match(line)]:
            return said[-lines:]
    return []
