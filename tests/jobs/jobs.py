"""What the jobs of these tests do, in processes that can import it only from this file's folder."""

import os
import signal
import time

from hydra.core.utils import JobReturn, JobStatus

from nlu.jobs.queue import Job


def number_of(job: Job) -> int:
    """Return the number of the job, as an exit status."""
    return job.number


def number_returned(job: Job) -> JobReturn:
    """Return the number of the job, as a job of Hydra's."""
    found = JobReturn(status=JobStatus.COMPLETED)
    found.return_value = job.number
    return found


def sleep(job: Job) -> int:
    """Outlast the test."""
    print("sleeps")
    time.sleep(300)
    return 0


def visible_gpus(job: Job) -> str | None:
    """Return the GPUs that this process sees, as CUDA takes them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def until_told(job: Job) -> JobReturn:
    """Note the start in FOLDER.began, and return the overrides once FOLDER.ends is there; 75 at once on SIGTERM."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(75))
    with open(f"{job.folder}.began", "a") as file:
        file.write(f"{os.getpid()}\n")
    while not told and not os.path.exists(f"{job.folder}.ends"):
        time.sleep(0.05)
    found = JobReturn(status=JobStatus.COMPLETED)
    found.return_value = told[0] if told else list(job.overrides)
    print(f"job {job.number} ends")
    return found
