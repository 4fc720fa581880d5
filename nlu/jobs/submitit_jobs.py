"""Jobs that submitit starts: their work, the files that a job leaves, and what it returned.

Read in submitit 1.5.4. submitit pickles the result of a job, and unpickling runs code, also that of a stranger who may
write to the folder. So our jobs return plain data (`to_plain`: texts, numbers, lists, dictionaries), and a file that
names anything else is not read.
"""

import os
import pickle
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.core.utils import JobReturn, JobStatus

from nlu.config.entry.grid import JobLost, raised_in
from nlu.config.errors import UserError
from nlu.config.redaction import hide
from nlu.config.stopping import end_with
from nlu.config.types import ConfigLike
from nlu.jobs.queue import Job, JobState, Ticket

if TYPE_CHECKING:
    from submitit.core.utils import JobPaths

WORK = "_submitted.pkl"
"""the end of the name of the file with the work of a job, after its id"""
TAIL_BYTES = 16_384
OF_SUBMITIT = re.compile(r"submitit (INFO|WARNING) \(|\[[^]]*\]\[submitit\]")
"""the beginning of submitit's own lines in the log of a job, also where Hydra's logging writes them"""
OF_A_JOB = {"SLURM_JOB_ID", "RANK"}
"""Slurm or torchrun sets one of these variables for each process of a job."""
PLACED = ("SLURM_", "SLURMD_", "TORCHELASTIC_")
RANKS = {
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
}  # fmt: skip
NOT_REQUEUED = "Job not requeued because"
PLACE = "_remote_traceback"
"""where Hydra keeps which lines raised an error, as texts and numbers, read in 1.4.0rc3; without it an error comes back
without them"""


class PlainWork:
    """What a job on this machine or on Slurm calls: its work, whose result becomes plain data.

    submitit pickles it, and hands it to the queue again when the time of a job is up.
    """

    def __init__(self, work: Callable[[Job], object]):
        self.work = work

    def __call__(self, job: Job) -> dict[str, object]:
        import submitit

        paths = submitit.JobEnvironment().paths
        # If a job is killed while it writes its result, the next start would find this file and fail.
        paths.result_pickle.with_suffix(".pkl.save_tmp").unlink(missing_ok=True)
        if os.environ.get("SUBMITIT_EXECUTOR") == "local":
            # Killed alone, submitit's controller would leave a job that nobody knows any more.
            end_with(os.getppid(), signal.SIGTERM)
        if paths.task_id:
            # The result of an earlier start must not count as that of this one.
            paths.result_pickle.unlink(missing_ok=True)
        return to_plain(self.work(job))

    def checkpoint(self, job: Job) -> object:
        """Return what is run when the job is started again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


def base_folder(settings: ConfigLike, folder: Path) -> Path:
    """Return the folder that has a folder for each submission, by hydra.launcher.submitit_folder.

    submitit puts ids in place of %j and the like, also within a name: the folder above that belongs to no single job.
    """
    from submitit.core.utils import JobPaths

    return JobPaths.get_first_id_independent_folder(settings.get("submitit_folder") or folder / ".submitit")


def files_of(ticket: Ticket) -> "JobPaths":
    """Return the files of a job that submitit started: they lie beside its log."""
    from submitit.core.utils import JobPaths

    assert ticket.log is not None
    return JobPaths(Path(ticket.log).parent, job_id=ticket.id.rpartition("/")[2])


def environment_of_new_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a job that is started within another one: without the rank and place of that one."""
    if not OF_A_JOB & set(environment):
        return dict(environment)
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not (name.startswith(PLACED) or name in RANKS)
    }


def tail(files: list[Path], lines: int) -> list[str]:
    """Return the last lines of the first file that holds any."""
    for file in files:
        try:
            with open(file, "rb") as stream:
                stream.seek(0, 2)
                start = max(0, stream.tell() - TAIL_BYTES)
                # Only the end: the log of a long run has many megabytes, and who follows the job reads it every few
                # seconds.
                stream.seek(start)
                text = stream.read().decode(errors="replace")
        except OSError:
            continue
        # A line without its beginning is left out, since it may be the end of a secret.
        said = hide("\n".join(text.splitlines()[1 if start else 0 :])).splitlines()
        if said := [line for line in said if line.strip() and not OF_SUBMITIT.match(line)]:
            return said[-lines:]
    return []


class JobError(RuntimeError):
    """An error that was raised in a job, with its text; its class has the name of the class that was raised there."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads Python's own literals. Any other object needs a name, and no name is looked up."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def to_plain(returned: object) -> dict[str, object]:
    """Return what a job leaves for the commands that follow it: plain data, without secrets."""
    if not isinstance(returned, JobReturn):
        return {"returned": _plain(returned)}
    if returned.status == JobStatus.COMPLETED:
        return {"status": returned.status.name, "value": _plain(raised_in(returned))}
    place = _plain(getattr(returned, PLACE, None))
    return {"status": JobStatus.FAILED.name, "raised": _plain_error(raised_in(returned)), "place": place}


def _plain_error(error: object) -> dict[str, object]:
    if not isinstance(error, BaseException):
        return {"kind": "RuntimeError", "text": hide(f"it returned {error!r}")}
    found: dict[str, object] = {"kind": type(error).__name__, "text": hide(str(error))}
    if isinstance(error, UserError):
        return found | {"problems": list(error.problems), "summary": error.summary, "remedy": error.remedy}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found | ({"cause": _plain_error(cause)} if cause is not None else {})


def _plain(value: object) -> object:
    """Return a value as Python's own literals: a NumPy number as a number, any other object as its text."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if getattr(value, "shape", None) == () and callable(item := getattr(value, "item", None)):
        return item()
    return hide(repr(value))


def read_outcome(file: Path) -> Any:
    """Return what a job returned: an exit status, or a JobReturn with a value or an error; None before."""
    if not file.exists():
        return None
    try:
        with open(file, "rb") as stream:
            how, value = _PlainUnpickler(stream).load()
        if how == "success":
            return _outcome(value)
    except FileNotFoundError:
        # The job was queued again since the file was seen.
        return None
    except OSError:
        raise
    except Exception as problem:
        return failed(
            JobLost(f"{file} is damaged, or not written by a job of this version ({problem}); it was not loaded")
        )
    error: Exception = JobError(f"the job failed with\n{value}")
    # submitit reports a job whose time is up as an error, with this text.
    if NOT_REQUEUED in str(value):
        error = JobLost(
            "its time was up before it had anything to save, or too often; give it more by hydra.launcher.timeout_min, "
            "or more turns by hydra.launcher.max_num_timeout"
        )
    return failed(error)


def state_of(outcome: object) -> JobState:
    """Return the state of a job that left this outcome."""
    is_done = not isinstance(outcome, JobReturn) or outcome.status == JobStatus.COMPLETED
    return JobState.DONE if is_done else JobState.FAILED


def _outcome(value: Mapping[str, Any]) -> Any:
    if "returned" in value:
        return value["returned"]
    if value["status"] != JobStatus.COMPLETED.name:
        found = failed(_error(value["raised"]))
        setattr(found, PLACE, value.get("place"))
        return found
    found = JobReturn(status=JobStatus.COMPLETED)
    found.return_value = value["value"]
    return found


def _error(raised: ConfigLike) -> Exception:
    if "problems" in raised:
        return UserError(*raised["problems"], summary=raised["summary"], remedy=raised["remedy"])
    kind = JobLost if raised["kind"] == JobLost.__name__ else type(str(raised["kind"]), (JobError,), {})
    error: Exception = kind(raised["text"])
    error.__cause__ = _error(raised["cause"]) if "cause" in raised else None
    return error


def failed(error: Exception) -> JobReturn:
    """Return the JobReturn of a job that ended with an error."""
    found = JobReturn(status=JobStatus.FAILED)
    found.return_value = error
    return found
