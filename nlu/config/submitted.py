"""Jobs that a launcher hands to a queue: what was refused, what was lost, and what to do when a job's time is up.

All that is known of submitit's inside stands here, read in 1.5.4: its errors by name, so that nothing of it is imported
where it is not used, the first line of their texts, the signal that it sends and the file in which a job returns.
Where one of these is gone, an error keeps its traceback, the signal is that of its documentation, and a job that is
queued again continues.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hydra.core.utils import JobReturn

from nlu.config import stopping

LAST_WORD_S = 3.0
"""how long a process that ended by an error takes to leave it"""
LOST_MAX = 5
"""A job that was started again so often and loses a process once more has failed."""
LOST, RAISED = "UncompletedJobError", "FailedJobError"
_LOST = re.compile(
    r"Job (?P<job>\S+) \(task: \S+\) with path (?P<folder>\S+)/[^/\s]+\s.*?\(state: (?P<state>[^)]*)\)", re.S
)


class JobLost(RuntimeError):
    """A job ended without a word: its node went down, it was cancelled, or nothing is known of it any more."""


@dataclass
class ElsewhereReturn(JobReturn):
    """What is known here of a job that ran elsewhere and left no JobReturn of its own."""

    number: int = 0
    folder: str = ""


def raised_in(job: JobReturn) -> Any:
    """Return what a job that failed raised; the public property (read in 1.4.0rc3) prints a line, and raises it."""
    return job._return_value


def refusal_of(error: BaseException | None) -> str | None:
    """Return what sbatch, or another command that hands jobs over, said when it refused one; None of other errors."""
    # Every command imports this module, and that takes as long as reading all signatures.
    import subprocess

    cause = error.__cause__ if error is not None else None
    if not isinstance(cause, subprocess.CalledProcessError):
        return None
    lines = (cause.stderr or "").strip().splitlines()
    return lines[-1] if lines else str(cause)


def grid_problems(error: Exception) -> list[str]:
    """Return what to tell of an error of the launcher of a grid; nothing where it has a traceback to show."""
    if not was_lost(error):
        return []
    if refusal := refusal_of(error):
        return [f"the jobs were refused: {refusal}; correct what hydra.launcher sets"]
    found = _LOST.search(str(error))
    if str(error).startswith("Job not requeued"):
        return ["the time of a job was up before it had anything to save; give it more by hydra.launcher.timeout_min"]
    if RAISED in {kind.__name__ for kind in type(error).__mro__} or found is None:
        return []
    return [
        f"job {found['job']} ended without a result ({found['state']}); its output is in {found['folder']}; the other "
        "jobs continue; once they have ended, the same command with the same hydra.sweep.dir and resume=auto runs the "
        "rest"
    ]


def is_submitted() -> bool:
    """Whether this process is a job of submitit's."""
    return os.environ.get("SUBMITIT_EXECUTOR") in ("local", "slurm")


def was_lost(error: BaseException | None) -> bool:
    """Whether an error says that a job ended without a word or with an error of its own: one that did begin."""
    return error is not None and any(kind.__name__ == LOST for kind in type(error).__mro__)


def time_signal() -> signal.Signals:
    """Return what submitit sends to a job some time before its time is up."""
    import submitit

    name = f"SIG{getattr(submitit.JobEnvironment, 'USR_SIG', 'USR2')}"
    return signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGUSR2


def was_started_before() -> bool:
    """Whether its queue has started this job before, to be asked once a process: then what it began continues.

    A file in the job's folder tells; `SLURM_RESTART_COUNT` is Slurm's own alone, and known to nobody else.
    """
    import submitit

    paths = getattr(submitit.JobEnvironment(), "paths", None)
    if paths is None:
        return "SLURM_RESTART_COUNT" in os.environ
    try:
        (paths.folder / f"{paths.job_id}_{paths.task_id}_started").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _went_without_a_word() -> bool:
    """Whether none of a job's other processes said what became of it, and the job was not started too often yet."""
    import submitit

    # Slurm ends the step as well, and asks this process to go.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(LAST_WORD_S)
    paths = submitit.JobEnvironment().paths
    said = [path for path in paths.folder.glob(f"{paths.job_id}_*_result.pkl") if path != paths.result_pickle]
    return not said and int(os.environ.get("SLURM_RESTART_COUNT", 0)) < LOST_MAX


def run_while_time_lasts(run: Callable[[], int], lost_a_peer: Callable[[BaseException], bool] = lambda _: False) -> int:
    """Call `run`, which returns an exit status; as a job of submitit's whose time is nearly up, it stops as on SIGTERM.

    submitit then queues the job again where hydra.launcher.max_num_timeout allows that. It is asked to as soon as the
    state is saved, before a mirror has all of it, or at once where there is nothing to save; then Slurm ends the job.

    Of several processes of a job the first has it queued again. So it does where it lost another one, as `lost_a_peer`
    says of an error, that did not say why: its node went down. Slurm by itself counts such a job as ended.
    """
    if not is_submitted():
        return run()
    number = time_signal()
    handler: Any = signal.getsignal(number)
    if not callable(handler):
        return run()
    job = _QueuedAgain(partial(handler, number, None))
    with stopping.listening(), stopping.told_when_saved(job.when_saved):
        signal.signal(number, job.receive)
        try:
            status = run()
        except RuntimeError as error:
            if lost_a_peer(error) and _went_without_a_word():
                handler(number, None)
            raise
        finally:
            signal.signal(number, handler)
    job.leave(status)
    return status


class _QueuedAgain:
    """A job of submitit's that is to be queued again when its time is up; `queue_again` does so, and raises."""

    def __init__(self, queue_again: Callable[[], None]):
        self._queue_again = queue_again
        self._is_up = self._is_asked = False
        self._raised: BaseException | None = None

    def receive(self, *_: Any) -> None:
        """Hear that the time is nearly up."""
        self._is_up = True
        if stopping.is_polled():
            signal.raise_signal(signal.SIGTERM)
            return
        # Slurm sends SIGTERM to a job that is queued again.
        stopping.note(signal.SIGTERM)
        self._queue_again()

    def when_saved(self) -> None:
        """Have the job queued again; what is raised for that waits until the job leaves."""
        if self._is_up and not self._is_asked:
            self._is_asked = True
            try:
                self._queue_again()
            except (Exception, SystemExit) as error:
                self._raised = error

    def leave(self, status: int) -> None:
        """Raise what ends a job that is queued again."""
        if not status:
            return
        self.when_saved()
        if self._raised is None:
            return
        from subprocess import SubprocessError

        # It cannot be queued again, by submitit's count or by Slurm's rules: its status says the same.
        if not was_lost(self._raised) and not isinstance(self._raised, SubprocessError):
            raise self._raised
