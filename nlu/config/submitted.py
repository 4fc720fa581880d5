"""Jobs that a launcher hands to a queue: what was refused, what was lost, and what to do when a job's time is up.

submitit's errors are known by name, so that nothing of it is imported where it is not used.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from typing import Any

LOST, RAISED = "UncompletedJobError", "FailedJobError"
_LOST = re.compile(
    r"Job (?P<job>\S+) \(task: \S+\) with path (?P<folder>\S+)/[^/\s]+\s.*?\(state: (?P<state>[^)]*)\)", re.S
)


def refusal_of(error: BaseException | None) -> str | None:
    """Return what sbatch, or another command that hands jobs over, said when it refused one; None of other errors."""
    cause = error.__cause__ if error is not None else None
    if not isinstance(cause, subprocess.CalledProcessError):
        return None
    lines = (cause.stderr or "").strip().splitlines()
    return lines[-1] if lines else str(cause)


def grid_problems(error: Exception) -> list[str]:
    """Return what to tell of an error of the launcher of a grid; nothing where it has a traceback to show."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if LOST not in kinds:
        return []
    if refusal := refusal_of(error):
        return [f"the jobs were refused: {refusal}; correct what hydra.launcher sets"]
    found = _LOST.search(str(error))
    if str(error).startswith("Job not requeued"):
        return ["the time of a job was up before it had anything to save; give it more by hydra.launcher.timeout_min"]
    if RAISED in kinds or found is None:
        return []
    return [
        f"job {found['job']} ended without a word ({found['state']}); what it said is in {found['folder']}, the other "
        "jobs go on; once they have ended, the same command with the same hydra.sweep.dir and resume=auto runs the rest"
    ]


def is_submitted() -> bool:
    """Whether this process is a job of submitit's."""
    return os.environ.get("SUBMITIT_EXECUTOR") in ("local", "slurm")


def time_signal() -> signal.Signals:
    """Return what submitit sends to a job some time before its time is up."""
    import submitit

    return signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]


def run_while_time_lasts(run: Callable[[], int]) -> int:
    """Call `run`, which returns an exit status; as a job of submitit's whose time is nearly up, it stops as on SIGTERM.

    submitit then queues the job again where hydra.launcher.max_num_timeout allows that. By itself it would do so, or
    raise an error, in the midst of whatever runs, which it still does while nobody listens to SIGTERM.
    """
    if not is_submitted():
        return run()
    number = time_signal()
    queue_again: Any = signal.getsignal(number)
    if not callable(queue_again):
        return run()
    deaf = signal.getsignal(signal.SIGTERM)
    is_up = False

    def receive(*received: Any) -> None:
        nonlocal is_up
        if signal.getsignal(signal.SIGTERM) == deaf:
            queue_again(*received)
        is_up = True
        signal.raise_signal(signal.SIGTERM)

    signal.signal(number, receive)
    status = run()
    if is_up and status:
        from submitit.core.utils import UncompletedJobError

        with contextlib.suppress(UncompletedJobError):
            queue_again(number, None)
    return status
