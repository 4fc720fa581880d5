"""Jobs that submitit starts: the work with its heartbeat, the files that a job leaves, and what it returned.

Read in submitit 1.5.4. submitit pickles the result of a job, and unpickling runs code, also that of a stranger who may
write to the folder. So our jobs return plain data (`to_plain`: texts, numbers, lists, dictionaries), and a file that
names anything else is not read.
"""

import os
import pickle
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.utils import JobReturn, JobStatus

from nlu.config.errors import UserError
from nlu.config.redaction import hide
from nlu.config.submitted import JobLost, raised_in
from nlu.jobs.queue import Job
from nlu.storage.files import write_text
from nlu.storage.heartbeat import BEAT_S, FILE_SILENCE_S, Heartbeat, Marks

SILENCE_S = FILE_SILENCE_S
"""seconds without a beat after which a job counts as lost, if only its heartbeat can tell"""
TAIL_BYTES = 16_384
OF_SUBMITIT = re.compile(r"submitit (INFO|WARNING) \(")
"""the beginning of submitit's own lines in the log of a job"""
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


class WithHeartbeat:
    """What a job on this machine or on Slurm calls: its work, with a heartbeat beside its log while that runs.

    submitit pickles it, and hands it to the queue again when the time of a job is up.
    """

    def __init__(self, work: Callable[[Job], object]):
        self.work = work

    def __call__(self, job: Job) -> dict[str, object]:
        import submitit

        paths = submitit.JobEnvironment().paths
        # If a job is killed while it writes its result, the next start would find this file and fail.
        paths.result_pickle.with_suffix(".pkl.save_tmp").unlink(missing_ok=True)
        if paths.task_id:
            # The result of an earlier start must not count as that of this one.
            paths.result_pickle.unlink(missing_ok=True)
            return to_plain(self.work(job))
        missed_file(paths.folder, str(paths.job_id)).unlink(missing_ok=True)
        with beating(beat_file(paths.folder, str(paths.job_id))):
            return to_plain(self.work(job))

    def checkpoint(self, job: Job) -> object:
        """Return what is run when the job is started again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


def beat_file(folder: Path, id: str) -> Path:
    """Return the file beside the log of a job that holds its node and a growing number."""
    return folder / f"{id}_beat"


def missed_file(folder: Path, id: str) -> Path:
    """Return the file beside the log of a job whose age says for how long an ended job has had no result."""
    return folder / f"{id}_missed"


@contextmanager
def beating(file: Path, interval_s: float = BEAT_S) -> Iterator[None]:
    """Write a new beat at every interval while the block runs."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    # A job that is started again must not write what the last start wrote.
    start = f"{node} {os.environ.get('SLURM_RESTART_COUNT', 0)} {os.getpid()}"

    def beat(number: int) -> bool:
        write_text(file, f"{start} {number}\n")
        return True

    # A full disk or one that is away does not end the heartbeat: the work itself reports it.
    heartbeat = Heartbeat(beat, name="beat", interval_s=interval_s)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop(wait=False)


class LastBeats:
    """For how long the beat of each job has stood still, over all commands that have looked at it."""

    def __init__(self) -> None:
        self._marks = Marks()

    def last(self, file: Path) -> tuple[str, float] | None:
        """Return the node of a job, and the seconds for which its beat has stood still; None without a beat."""
        try:
            still_s = self._marks.still_s(file.with_name(f"{file.name}_seen"), file.read_text)
            return file.read_text().partition(" ")[0], still_s
        except OSError:
            return None


class _Subprocess:
    """Stands for `subprocess` in a module of submitit, and starts processes with other options."""

    def __init__(self, **options: object):
        self._options = options

    def Popen(self, *arguments: object, env: Mapping[str, str] | None = None, **options: object) -> object:  # noqa: N802
        """Start a process that does not take itself for a part of the job in which this process runs."""
        own = environment_of_new_job(os.environ if env is None else env)
        start: Any = subprocess.Popen
        return start(*arguments, env=own, **{**options, **self._options})

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)


def detach_jobs(say: Callable[..., None] = print) -> None:
    """Have submitit start local jobs that outlive this process, and sbatch outside of the job of this process.

    A local job gets its own session, which Ctrl-C and the end of a terminal do not reach, and none of the streams of
    this process: a pipe stays open until the last process that has it ends. `say` prints what sbatch says in an error.
    """
    from submitit.core import utils
    from submitit.local import local

    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    local.subprocess = _Subprocess(start_new_session=True, **silent)  # type: ignore[assignment]  # submitit has no hook
    utils.subprocess = _Subprocess()  # type: ignore[assignment]  # as above
    # In that module the name hides the built-in function.
    utils.print = say  # type: ignore[attr-defined]  # as above


def environment_of_new_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a job that is started within another one: without the rank and place of that one."""
    if not OF_A_JOB & set(environment):
        return dict(environment)
    return {
        name: value
        for name, value in environment.items()
        if name == "SLURM_CONF" or not (name.startswith(PLACED) or name in RANKS)
    }


def result_file(folder: Path, number: str) -> Path:
    """Return the file with the result of the first task of a job; `folder` is the folder of the job."""
    return folder / f"{number}_0_result.pkl"


def log_files(folder: Path, number: str) -> list[Path]:
    """Return the files with the output of the first task of a job, the one that the run logs to first."""
    return [folder / f"{number}_0_log.{ending}" for ending in ("err", "out")]


def tail(files: list[Path], lines: int) -> list[str]:
    """Return the last lines of the first file that holds any."""
    for file in files:
        try:
            with open(file, "rb") as stream:
                stream.seek(0, 2)
                start = max(0, stream.tell() - TAIL_BYTES)
                # Only the end: the log of a long run has many megabytes, and the live table reads it every few seconds.
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


def _error(raised: Mapping[str, Any]) -> Exception:
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
