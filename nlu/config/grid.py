"""The end of a --multirun of Hydra's grid: which of its jobs went wrong, and where all of them lie."""

import functools
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.utils import JobReturn
from omegaconf import DictConfig

STOPPED = (75, 130)
"""Exit statuses of a job that saved its state and is to be continued."""
RECORD = "config.yaml"
"""makes a folder a run's"""


@contextmanager
def returns_kept() -> Iterator[list[JobReturn]]:
    """Fill a list with what the jobs of a grid return, wherever they run: Hydra tells nobody, so it is asked here.

    A search returns nothing, and the list stays empty.
    """
    found: list[JobReturn] = []
    original = Hydra.multirun

    @functools.wraps(original)
    def multirun(self: Hydra, *arguments: Any, **named: Any) -> Any:
        batches = original(self, *arguments, **named)
        found.extend(job for batch in batches or () for job in batch)
        return batches

    Hydra.multirun = multirun  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Hydra.multirun = original  # type: ignore[method-assign]


def run_dir_problems(config: DictConfig) -> list[str]:
    """Return a problem where a --multirun, grid or search, is given the folder of a single run, which it ignores."""
    keys = [override.partition("=") for override in config.hydra.overrides.hydra]
    return [
        f"hydra.run.dir is set to {value}, but a --multirun writes into hydra.sweep.dir; set hydra.sweep.dir={value}"
        for key, _, value in keys
        if key.lstrip("+") == "hydra.run.dir"
    ]


def status_of(job: JobReturn) -> int:
    """Return the exit status that a job stands for: the integer that it returned, 0 for anything else."""
    value = job.return_value
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def print_end(jobs: Sequence[JobReturn]) -> None:
    """Say after the last job of a grid where the runs are, and on standard error which jobs left none."""
    if not jobs:
        return
    from nlu.config.tables import path_text

    statuses = {job.hydra_cfg.hydra.job.num: status_of(job) for job in jobs}  # type: ignore[union-attr]
    folders = [Path(job.hydra_cfg.hydra.runtime.output_dir) for job in jobs]  # type: ignore[union-attr]
    top = path_text(Path(os.path.commonpath([folder.parent for folder in folders])))
    if any((folder / RECORD).is_file() for folder in folders):
        print(f"\n{sum((folder / RECORD).is_file() for folder in folders)} of {len(jobs)} jobs left a run in {top}")
        print(f"python -m nlu.report {shlex.quote(top)}", flush=True)
    failed = [number for number, status in statuses.items() if status not in (0, *STOPPED)]
    stopped = [number for number, status in statuses.items() if status in STOPPED]
    for numbers, what in ((failed, "refused or failed"), (stopped, "stopped, their state saved")):
        if numbers:
            listed = ", ".join(map(str, numbers))
            print(f"nlu: {len(numbers)} of {len(jobs)} jobs were {what}: {listed}", file=sys.stderr)
    # Jobs in processes of their own spoke into files of their own.
    elsewhere = Path(top) / ".submitit"
    if failed and elsewhere.is_dir():
        print(f"nlu: what they said is in {elsewhere}", file=sys.stderr)
