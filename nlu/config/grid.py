"""A --multirun of Hydra's grid: its jobs are checked before the first one starts, and counted after the last."""

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, open_dict, read_write

from nlu.config.dry_run import show_grid
from nlu.config.errors import UserError
from nlu.config.resolve import without_hydra

STOPPED = (75, 130)
"""Exit statuses of a job that saved its state and is to be continued."""
RECORD = "config.yaml"
"""makes a folder a run's"""
Check = Callable[[DictConfig], dict[str, Any]]
"""Returns a composed configuration as plain containers, or raises UserError with all its problems."""


@dataclass
class Grid:
    """What is known of a --multirun by Hydra's own sweeper."""

    swept: list[str] = field(default_factory=list)
    """keys whose values differ between the jobs"""
    returned: list[JobReturn] = field(default_factory=list)
    """what the jobs returned, wherever they ran"""


@contextmanager
def checked_grid(grid: Grid, check: Check) -> Iterator[None]:
    """Have Hydra's sweeper `check` the configuration of every job before the first one starts, and fill `grid`.

    A search has a sweeper of its own.
    """
    original = BasicSweeper.sweep

    @functools.wraps(original)
    def sweep(self: BasicSweeper, arguments: list[str]) -> Any:
        jobs = _jobs_of(self, arguments)
        grid.swept += [key for key, values in _values(jobs).items() if len(values) > 1]
        configs = _checked(self, jobs, grid.swept, check)
        if all(config.get("dry_run") for config in configs):
            show_grid([job_name(number, job, grid.swept) for number, job in enumerate(jobs)])
            return []
        batches = original(self, arguments)
        grid.returned += [job for batch in batches or () for job in batch]
        return batches

    BasicSweeper.sweep = sweep  # type: ignore[method-assign]
    try:
        yield
    finally:
        BasicSweeper.sweep = original  # type: ignore[method-assign]


def _jobs_of(sweeper: BasicSweeper, arguments: list[str]) -> list[list[str]]:
    assert sweeper.hydra_context is not None, "Hydra calls setup first"
    # The choices of a group, for which glob(*) asks, are known to the loader alone.
    parser = OverridesParser.create(config_loader=sweeper.hydra_context.config_loader)
    overrides = parser.parse_overrides([*(f"{key}={value}" for key, value in sweeper.params.items()), *arguments])
    return [list(job) for job in sweeper.split_arguments(overrides, None)[0]]


def _values(jobs: Sequence[Sequence[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for job in jobs:
        for override in job:
            key, _, value = override.partition("=")
            found.setdefault(key, set()).add(value)
    return found


def job_name(number: int, overrides: Sequence[str], swept: Sequence[str]) -> str:
    """Return the number of a job, with what tells it from the others of its grid."""
    own = ", ".join(override for override in overrides if override.partition("=")[0] in swept)
    return f"job {number} ({own})" if own else f"job {number}"


def _checked(
    sweeper: BasicSweeper, jobs: Sequence[list[str]], swept: Sequence[str], check: Check
) -> list[dict[str, Any]]:
    """Return the configuration of each job. Raises UserError with every problem once, and which jobs have it."""
    assert sweeper.config is not None, "Hydra calls setup first"
    configs: list[dict[str, Any]] = []
    found: dict[str, list[int]] = {problem: list(range(len(jobs))) for problem in run_dir_problems(sweeper.config)}
    for number, job in enumerate(jobs):
        try:
            with _composed(sweeper, number, job) as composed:
                configs.append(check(composed))
        except UserError as error:
            for problem in dict.fromkeys(error.problems):
                found.setdefault(problem, []).append(number)
    if not found:
        return configs
    raise UserError(*(_of_jobs(numbers, jobs, swept) + problem for problem, numbers in found.items()))


def _of_jobs(numbers: list[int], jobs: Sequence[list[str]], swept: Sequence[str]) -> str:
    if len(numbers) == len(jobs):
        return ""
    if len(numbers) > 1:
        return f"jobs {', '.join(map(str, numbers))}: "
    return f"{job_name(numbers[0], jobs[numbers[0]], swept)}: "


@contextmanager
def _composed(sweeper: BasicSweeper, number: int, overrides: list[str]) -> Iterator[DictConfig]:
    """Compose the configuration of a job, with what Hydra's launchers tell it of itself."""
    assert sweeper.hydra_context is not None and sweeper.config is not None, "Hydra calls setup first"
    composed = sweeper.hydra_context.config_loader.load_sweep_config(sweeper.config, overrides)
    current = HydraConfig.instance()
    outer = current.cfg
    with open_dict(composed), read_write(composed.hydra):
        composed.hydra.job.num, composed.hydra.job.id = number, str(number)
    current.set_config(composed)
    try:
        with open_dict(composed), read_write(composed.hydra):
            sweep = composed.hydra.sweep
            composed.hydra.runtime.output_dir = os.path.abspath(os.path.join(str(sweep.dir), str(sweep.subdir)))
        current.set_config(composed)
        yield without_hydra(composed)
    finally:
        current.cfg = outer


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
    # A job that was refused may have found the run of an earlier command in its folder.
    left = [
        folder
        for job, folder in zip(jobs, folders, strict=True)
        if status_of(job) in (0, *STOPPED) and (folder / RECORD).is_file()
    ]
    if left:
        print(f"\n{len(left)} of {len(jobs)} jobs left a run in {top}")
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
