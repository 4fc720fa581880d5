"""What a job calls on this machine or on Slurm: its work, with a sign of life beside its log while that lasts.

Whoever follows the job counts how long the sign stands still by a clock of its own, since clocks of hosts differ.
"""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nlu.launching.missed import stood_s
from nlu.launching.queue import Job
from nlu.launching.submitit_jobs import told

BEAT_S = 10.0
SILENCE_S = 120.0
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


class Beats:
    """The last signs of life of jobs, and how long each has stood still, whichever commands looked before."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[str, float]] = {}
        """a job's last beat, and since when it has been there by the clock of this process"""

    def last(self, file: Path) -> tuple[str, float] | None:
        """Return the node of a job, and for how many seconds its beat has stood still; None of one that has none."""
        try:
            beat = file.read_text()
        except OSError:
            return None
        seen = self._seen.get(file)
        # It is empty at the moment at which it is written anew.
        if beat and (seen is None or seen[0] != beat):
            stood = 0.0
            if seen is None:
                # Where no mark can be written, each command begins to wait anew.
                with suppress(OSError):
                    stood = stood_s(file.with_name(f"{file.name}_seen"), beat)
            seen = self._seen[file] = beat, time.monotonic() - stood
        return None if seen is None else (seen[0].partition(" ")[0], time.monotonic() - seen[1])
