"""What a job of Slurm calls: its work, with a sign of life beside its log while that lasts.

Whoever follows the job counts how long the sign stands still by a clock of its own, since clocks of hosts differ.
"""

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nlu.launching.queue import Job

BEAT_S = 10.0


def beat_file(folder: Path, id: str) -> Path:
    """Return the file beside a job's log that tells its node, and a number that grows."""
    return folder / f"{id}_beat"


def missed_file(folder: Path, id: str) -> Path:
    """Return the file beside a job's log that says since when the job has ended, as Slurm has it, without a result."""
    return folder / f"{id}_missed"


class Attended:
    """Work that can be pickled; submitit hands it to the queue again, as it is, when a job's time is up."""

    def __init__(self, work: Callable[[Job], Any]):
        self.work = work

    def __call__(self, job: Job) -> Any:
        import submitit

        paths = submitit.JobEnvironment().paths
        # Killed while it wrote its result, a job that is started again would find its file and fail.
        paths.result_pickle.with_suffix(".pkl.save_tmp").unlink(missing_ok=True)
        if paths.task_id:
            # What it returned when the job was started before is no last word now.
            paths.result_pickle.unlink(missing_ok=True)
            return self.work(job)
        missed_file(paths.folder, str(paths.job_id)).unlink(missing_ok=True)
        with beating(beat_file(paths.folder, str(paths.job_id))):
            return self.work(job)

    def checkpoint(self, job: Job) -> Any:
        """Return what is to be run when the job is started again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


@contextmanager
def beating(file: Path, interval_s: float = BEAT_S) -> Iterator[None]:
    """Write a sign of life every so often while the block runs."""
    ended = threading.Event()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    # A job that is started again must not say the same as before.
    numbers = itertools.count()
    start = f"{node} {os.environ.get('SLURM_RESTART_COUNT', 0)} {os.getpid()}"

    def beat() -> None:
        while True:
            # A disk that is full, or away, is told by the work.
            with suppress(OSError):
                file.write_text(f"{start} {next(numbers)}\n")
            if ended.wait(interval_s):
                return

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
