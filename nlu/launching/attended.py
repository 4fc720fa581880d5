"""What a job calls on this machine or on Slurm: its work, with a sign of life beside its log while that lasts.

Whoever follows the job judges by `nlu.storage.heartbeat` whether it lives, where nothing else tells.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nlu.launching.queue import Job
from nlu.launching.submitit_jobs import told
from nlu.storage.files import write_text
from nlu.storage.heartbeat import BEAT_S, FILE_SILENCE_S, Heartbeat, Marks

SILENCE_S = FILE_SILENCE_S
"""how long a beat may stand still, while nothing else tells whether its job lives, before that is lost"""


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
            return told(self.work(job))
        missed_file(paths.folder, str(paths.job_id)).unlink(missing_ok=True)
        with beating(beat_file(paths.folder, str(paths.job_id))):
            return told(self.work(job))

    def checkpoint(self, job: Job) -> Any:
        """Return what is to be run when the job is started again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


@contextmanager
def beating(file: Path, interval_s: float = BEAT_S) -> Iterator[None]:
    """Write a sign of life every so often while the block runs."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    # A job that is started again must not say the same as before.
    start = f"{node} {os.environ.get('SLURM_RESTART_COUNT', 0)} {os.getpid()}"

    def beat(number: int) -> bool:
        write_text(file, f"{start} {number}\n")
        return True

    # Where a disk is full, or away, its work says so.
    heartbeat = Heartbeat(beat, name="beat", interval_s=interval_s)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop(wait=False)


class Beats:
    """The last signs of life of jobs, and how long each has stood still, whichever commands looked before."""

    def __init__(self) -> None:
        self._marks = Marks()

    def last(self, file: Path) -> tuple[str, float] | None:
        """Return the node of a job, and for how many seconds its beat has stood still; None of one that has none."""
        try:
            still_s = self._marks.still_s(file.with_name(f"{file.name}_seen"), file.read_text)
            return file.read_text().partition(" ")[0], still_s
        except OSError:
            return None
