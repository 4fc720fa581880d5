"""A job of submitit whose time is up saves its state and is queued again; jobs that were refused or lost.

This module contains everything that depends on submitit's internals, read in 1.5.4: the names of its errors, by which
they are recognized without an import, the signal that it sends, and the file with the result of a job. If one of these
is missing in another version, the signal is the documented one, and requeued jobs still continue.
"""

import os
import signal
import time
from collections.abc import Callable
from functools import partial

from nlu.config import stopping
from nlu.config.entry.grid import is_submitted

LAST_WORD_S = 3.0
"""Longest time in which a process that failed writes its error."""
LOST_MAX = 5
"""Restarts after lost processes; the next loss fails the job."""
LOST = "UncompletedJobError"


def refusal_of(error: BaseException | None) -> str | None:
    """Return the message with which sbatch or a similar command refused a job; None for other errors."""
    # Imported late: every command imports this module.
    import subprocess

    cause = error.__cause__ if error is not None else None
    if not isinstance(cause, subprocess.CalledProcessError):
        return None
    lines = (cause.stderr or "").strip().splitlines()
    return lines[-1] if lines else str(cause)


def was_lost(error: BaseException | None) -> bool:
    """Return whether an error of submitit says that a job started and ended without a result or with an error."""
    return error is not None and any(kind.__name__ == LOST for kind in type(error).__mro__)


def time_signal() -> signal.Signals:
    """Return the signal that submitit sends to a job shortly before its time limit."""
    import submitit

    name = f"SIG{getattr(submitit.JobEnvironment, 'USR_SIG', 'USR2')}"
    return signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGUSR2


def was_started_before() -> bool:
    """Return whether the queue has started this job before, so that it continues. Call this once in a process.

    A file in the job's folder records the start. `SLURM_RESTART_COUNT` exists only on Slurm.
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


def _lost_without_result() -> bool:
    """Return whether no other process of the job left a result, and the job may still be restarted."""
    import submitit

    # Slurm ends the whole step, so it sends SIGTERM to this process too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Another process of the job may be writing its error right now; it knows better why the job failed.
    time.sleep(LAST_WORD_S)
    paths = submitit.JobEnvironment().paths
    results = [path for path in paths.folder.glob(f"{paths.job_id}_*_result.pkl") if path != paths.result_pickle]
    return not results and int(os.environ.get("SLURM_RESTART_COUNT", 0)) < LOST_MAX


def run_while_time_lasts(run: Callable[[], int], lost_a_peer: Callable[[BaseException], bool] = lambda _: False) -> int:
    """Call `run`, which returns an exit status, and stop it as by SIGTERM when a job of submitit nears its time limit.

    submitit then requeues the job if hydra.launcher.max_num_timeout allows it. The requeue is requested as soon as the
    state is saved, before a mirror is complete, or immediately if nothing is to be saved. Slurm then ends the job.

    In a job of several processes the first one requests it. It does so too after an error that `lost_a_peer` recognizes
    if the lost process left no result: its node went down, and Slurm would count the job as ended.
    """
    if not is_submitted():
        return run()
    number = time_signal()
    handler = signal.getsignal(number)
    if not callable(handler):
        return run()
    # submitit's own handler does the requeue; it expects the arguments of a signal handler.
    job = _Requeue(partial(handler, number, None))
    with stopping.listening(), stopping.told_when_saved(job.when_saved):
        signal.signal(number, job.receive)
        try:
            status = run()
        except RuntimeError as error:
            if lost_a_peer(error) and _lost_without_result():
                handler(number, None)
            raise
        finally:
            signal.signal(number, handler)
    job.leave(status)
    return status


class _Requeue:
    """A job of submitit that is requeued at its time limit; `queue_again` requeues it, and raises to end it."""

    def __init__(self, queue_again: Callable[[], None]):
        self._queue_again = queue_again
        self._is_up = self._is_asked = False
        self._raised: BaseException | None = None

    def receive(self, *_: object) -> None:
        """Handle the signal that the time is nearly up."""
        self._is_up = True
        # The loop saves first, and calls `when_saved`; nothing may be raised at this instruction.
        if stopping.is_polled():
            signal.raise_signal(signal.SIGTERM)
            return
        # Slurm sends SIGTERM to a requeued job.
        stopping.note(signal.SIGTERM)
        self._queue_again()

    def when_saved(self) -> None:
        """Requeue the job once its time is up; the exception that ends it is kept until `leave`."""
        # A run may save several times after the signal.
        if self._is_up and not self._is_asked:
            self._is_asked = True
            try:
                self._queue_again()
            except (Exception, SystemExit) as error:
                self._raised = error

    def leave(self, status: int) -> None:
        """Raise the exception that ends a requeued job."""
        if not status:
            return
        self.when_saved()
        if self._raised is None:
            return
        from subprocess import SubprocessError

        # If submitit's limit or Slurm forbids the requeue, only the exit status asks for it.
        if not was_lost(self._raised) and not isinstance(self._raised, SubprocessError):
            raise self._raised
