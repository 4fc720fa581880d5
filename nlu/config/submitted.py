"""Jobs that a launcher hands to a queue: what was refused, what was lost, and what to do when a job's time is up.

All that is known of submitit's inside stands here, read in 1.5.4: its errors by name, so that nothing of it is imported
where it is not used, the first line of their texts, the signal that it sends and the file in which a job returns.
Where one of these is gone, an error keeps its traceback, the signal is that of its documentation, and a job that is
queued again goes on.
"""

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
        f"job {found['job']} ended without a word ({found['state']}); what it said is in {found['folder']}, the other "
        "jobs go on; once they have ended, the same command with the same hydra.sweep.dir and resume=auto runs the rest"
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


def was_answered() -> bool:
    """Whether this is a job that Slurm starts once more although it had ended, with its state saved, when it had to go.

    A search has read that and launched another job, which would wait for this one, or this one for it.
    """
    if "SLURM_RESTART_COUNT" not in os.environ:
        return False
    import submitit

    paths = getattr(submitit.JobEnvironment(), "paths", None)
    returned = getattr(paths, "result_pickle", None)
    return returned is not None and returned.exists()


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
        try:
            queue_again(number, None)
        except Exception as error:
            # It cannot be queued again: its status says the same.
            if not was_lost(error):
                raise
    return status
