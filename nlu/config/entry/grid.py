"""A grid (--multirun): all jobs are checked before the first one starts, and counted after the last."""

import hashlib
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

from nlu.config.command_line import interval_problem, overrides_of_sweep, quoted
from nlu.config.compose import compose_job
from nlu.config.console import print_dry_run_of_grid, printing
from nlu.config.entry.hydra_keys import current_config, place_problems
from nlu.config.errors import UserError
from nlu.config.resolving import as_given, without_hydra
from nlu.config.sentences import counted
from nlu.config.stopping import STOPPED

EXIT_LOST = 1
"""Exit status of a command that lost a job."""
RECORD = "config.yaml"
"""The file by which a run folder is recognized."""
Check = Callable[[DictConfig], Mapping[str, object]]
"""Returns a composed configuration as plain containers, or raises UserError with all its problems."""


class JobLost(RuntimeError):
    """A job ended without a result: its node went down, it was cancelled, or the queue has forgotten it."""


@dataclass
class ElsewhereReturn(JobReturn):
    """The result of a job that ran elsewhere and wrote no JobReturn."""

    number: int = 0
    folder: str = ""


def raised_in(job: JobReturn) -> object:
    """Return the error of a failed job. The public property (read in Hydra 1.4.0rc3) prints a line and raises it."""
    return job._return_value


def is_submitted() -> bool:
    """Return whether this process is a job of submitit."""
    return os.environ.get("SUBMITIT_EXECUTOR") in ("local", "slurm")


@dataclass
class Grid:
    """State of a --multirun that is a grid; searches have their own sweeper."""

    check: Check
    """called with the configuration of each job before the first one starts"""
    swept: list[str] = field(default_factory=list)
    """keys whose values differ between the jobs"""
    returned: list[JobReturn] = field(default_factory=list)
    """results of the jobs, in this process or elsewhere"""
    command: Sequence[str] = ()
    """the given command line"""
    is_single: bool = False
    """whether it is one run for a launcher, in the folder hydra.run.dir"""
    is_shared: bool = False
    """whether its jobs share one work, which each of them follows to its end: one that is lost is not missed"""
    configs: list[Mapping[str, object]] = field(default_factory=list)
    """the checked configuration of each job"""
    is_handed_over: bool = False
    """whether a queue has the jobs, or may have them, and runs them without this command"""


CheckOfJobs = Callable[[Launcher, Sequence[Sequence[str]], Sequence[Mapping[str, object]]], None]
_CURRENT: ContextVar[Grid | None] = ContextVar("grid", default=None)


def current() -> Grid | None:
    """Return the grid that runs in this thread."""
    return _CURRENT.get()


@contextmanager
def current_grid(check: Check, command: Sequence[str]) -> Iterator[Grid]:
    """Make a grid that runs in this block `check` the configuration of each job before the first one starts."""
    grid = Grid(check, command=command)
    token = _CURRENT.set(grid)
    try:
        yield grid
    finally:
        _CURRENT.reset(token)


def jobs_that_share(config: DictConfig, name: str, overrides: Sequence[str], *, is_multirun: bool) -> list[str]:
    """Return the overrides that make a command with `jobs` a grid of them; [] for any other command.

    The same command has the same folder of its jobs, in which it finds them again. Raises UserError without a launcher.
    """
    jobs = config.get("jobs") or 1
    if jobs == 1 or config.get("job") is not None:
        return []
    if config.hydra.runtime.choices.get("hydra/launcher") in ("basic", None):
        raise UserError(
            f"jobs is {jobs}, but no launcher starts them; set hydra/launcher=local for processes of this machine, "
            "slurm or another one"
        )
    own = sorted(one for one in overrides if not one.lstrip("+").startswith("hydra"))
    folder = f"outputs/jobs/{name}-{hashlib.sha256(' '.join(own).encode()).hexdigest()[:8]}"
    is_named = is_multirun or any(one.lstrip("+").startswith("hydra.sweep.dir=") for one in overrides)
    return [f"job={','.join(map(str, range(jobs)))}", *([] if is_named else [f"hydra.sweep.dir={folder}"])]


def run_grid(
    overrides: Sequence[Override], context: HydraContext, config: DictConfig, launcher: Launcher, check: CheckOfJobs
) -> Sequence[JobReturn]:
    """Run a job for each combination of values, and return the results.

    In a dry run `check` is given the launcher, the jobs and their configurations. Raises UserError before anything is
    written or started if the configuration of any job is invalid.
    """
    grid = _CURRENT.get()
    # A single run records its overrides as given, so they are not rewritten.
    is_single = grid is not None and grid.is_single
    jobs = [[quoted(str(override.input_line)) for override in overrides]] if is_single else jobs_of(overrides)
    if grid is not None:
        grid.swept += [key for key, values in _values(jobs).items() if len(values) > 1]
        # All jobs before the first one: otherwise the last of a long grid could fail for a typing error.
        grid.configs = _checked(context.config_loader, config, jobs, grid)
        given = [override.get_key_element() for override in overrides if override.is_sweep_override()]
        if problems := list(_equal_jobs(grid.configs, jobs, given)):
            raise UserError(*problems)
        if all(checked.get("dry_run") for checked in grid.configs):
            check(launcher, jobs, grid.configs)
            print_dry_run_of_grid([job_name(number, job, grid.swept) for number, job in enumerate(jobs)])
            return []
    returned = launcher.launch(jobs, initial_job_idx=0)
    for job in returned:
        if lost_in(job) is None:
            # Raises what the job raised.
            _ = job.return_value
    if grid is not None:
        grid.returned += returned
    return returned


def jobs_of(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each job: all combinations of values. Raises UserError for an interval."""
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [quoted(f"{key}={override.get_value_element_as_str()}")]
        elif override.is_discrete_sweep():
            choices[key] = overrides_of_sweep(override)
        else:
            raise UserError(interval_problem(str(override.input_line)))
    for key, jobs in choices.items():
        if not jobs:
            raise UserError(f"{key} is given no value; name the values: {key}=VALUE,VALUE")
    return [list(job) for job in itertools.product(*choices.values())]


def _values(jobs: Sequence[Sequence[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for job in jobs:
        for override in job:
            key, _, value = override.partition("=")
            found.setdefault(key, set()).add(value)
    return found


def job_name(number: int, overrides: Sequence[str], swept: Sequence[str]) -> str:
    """Return the number of a job, with the overrides in which it differs from the others."""
    own = ", ".join(override.lstrip("+") for override in overrides if override.partition("=")[0] in swept)
    return f"job {number} ({own})" if own else f"job {number}"


def _checked(
    loader: ConfigLoader, master: DictConfig, jobs: Sequence[list[str]], grid: Grid
) -> list[Mapping[str, object]]:
    """Return the configuration of each job. Raises UserError with every problem once, and which jobs have it."""
    configs: list[Mapping[str, object]] = []
    of_all = [] if grid.is_single else run_dir_problems(master)
    found: dict[str, list[int]] = {problem: list(range(len(jobs))) for problem in of_all}
    folders: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        try:
            with _composed(compose_job(loader, master, job), number, grid.is_single) as composed:
                folders.setdefault(HydraConfig.get().runtime.output_dir, []).append(number)
                configs.append(grid.check(composed))
        except UserError as error:
            for problem in dict.fromkeys(error.problems):
                found.setdefault(problem, []).append(number)
    for folder, numbers in folders.items():
        if len(numbers) > 1:
            shared = f"hydra.sweep.subdir makes {folder} the folder of several jobs"
            found[f"{shared}; give each its own, or leave it out"] = numbers
    if not found:
        return configs
    raise UserError(*(_of_jobs(numbers, jobs, grid.swept) + problem for problem, numbers in found.items()))


def _equal_jobs(
    configs: Sequence[Mapping[str, object]], jobs: Sequence[Sequence[str]], given: Sequence[str]
) -> Iterator[str]:
    """Yield a problem for each configuration of several jobs, named by the keys that are `given` several values."""
    alike: dict[str, list[int]] = {}
    for number, config in enumerate(configs):
        # The configurations are compared, since 1e-3 and 0.001 are the same value.
        alike.setdefault(repr(config), []).append(number)
    for numbers in alike.values():
        if len(numbers) > 1:
            first, second = (job_name(number, jobs[number], given) for number in numbers[:2])
            more = f" and {counted(len(numbers) - 2, 'other job')}" if len(numbers) > 2 else ""
            yield (
                f"{first} has the configuration of {second}{more}, but each job of a grid must have its own; leave out "
                "the value that is given twice; for several runs of one configuration set other seeds, such as seeds=2"
            )


def _of_jobs(numbers: list[int], jobs: Sequence[list[str]], swept: Sequence[str]) -> str:
    if len(numbers) == len(jobs):
        return ""
    if len(numbers) > 1:
        return f"jobs {', '.join(map(str, numbers))}: "
    return f"{job_name(numbers[0], jobs[numbers[0]], swept)}: "


@contextmanager
def _composed(composed: DictConfig, number: int, is_single: bool) -> Iterator[DictConfig]:
    """Set the number and the folder of a job in its configuration, as Hydra's launchers do, and yield it plain."""
    with open_dict(composed), read_write(composed.hydra):
        composed.hydra.job.num, composed.hydra.job.id = number, str(number)
    with current_config(composed):
        if problems := list(place_problems(composed, "sweep")):
            raise UserError(*problems)
        with open_dict(composed), read_write(composed.hydra):
            sweep = composed.hydra.sweep
            folder = composed.hydra.run.dir if is_single else os.path.join(str(sweep.dir), str(sweep.subdir))
            composed.hydra.runtime.output_dir = os.path.abspath(str(folder))
    with current_config(composed):
        yield without_hydra(composed)


def run_dir_problems(config: DictConfig) -> list[str]:
    """Return a problem if a --multirun sets the folder of a single run, which it does not use."""
    keys = [override.partition("=") for override in as_given(config.hydra.overrides.hydra)]
    return [
        f"hydra.run.dir is set to {value}, but a --multirun writes into hydra.sweep.dir; set hydra.sweep.dir={value}"
        for key, _, value in keys
        if key.lstrip("+") == "hydra.run.dir"
    ]


def lost_in(job: JobReturn) -> JobLost | None:
    """Return why a job was lost; None if it returned or failed."""
    found = raised_in(job) if job.status == JobStatus.FAILED else None
    return found if isinstance(found, JobLost) else None


def status_of(job: JobReturn) -> int:
    """Return the exit status of a job: the integer that it returned, 0 for anything else, 1 if it was lost."""
    if lost_in(job) is not None:
        return EXIT_LOST
    value = job.return_value
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def print_end(grid: Grid) -> None:
    """Print after the last job of a grid where the runs are, and on standard error which jobs left none."""
    if not grid.returned or grid.is_shared and 0 in map(status_of, grid.returned):
        return
    from nlu.config.sentences import path_text

    jobs = grid.returned
    numbered = {0: jobs[0]} if grid.is_single else {_number_of(job): job for job in jobs}
    statuses = {number: status_of(job) for number, job in numbered.items()}
    folders = [_folder_of(job) for job in jobs]
    top = folders[0] if grid.is_single else Path(os.path.commonpath([folder.parent for folder in folders]))
    # The folder of a refused job may hold the run of an earlier command.
    left = [
        folder
        for job, folder in zip(jobs, folders, strict=True)
        if status_of(job) in (0, *STOPPED) and (folder / RECORD).is_file()
    ]
    # On standard output, what the next command needs: where the runs are.
    if left:
        what = "the run is in" if grid.is_single else f"{len(left)} of {len(jobs)} jobs left a run in"
        with printing():
            print(f"\n{what} {path_text(top)}")
            print(f"python -m nlu.report {shlex.quote(path_text(top))}")
    # On standard error, the jobs that left no run, each once: lost, failed or stopped.
    lost = {number: error for number, job in numbered.items() if (error := lost_in(job)) is not None}
    failed = [number for number, status in statuses.items() if status not in (0, *STOPPED) and number not in lost]
    stopped = [number for number, status in statuses.items() if status in STOPPED]
    with printing(sys.stderr):
        for numbers, what in ((failed, "refused or failed"), (stopped, "stopped, to be continued")):
            if numbers:
                listed = ", ".join(map(str, numbers))
                subject = "the job was" if grid.is_single else f"{len(numbers)} of {len(jobs)} jobs were"
                print(f"nlu: {subject} {what}{'' if grid.is_single else f': {listed}'}", file=sys.stderr)
        for number, error in lost.items():
            print(f"nlu: {'the job' if grid.is_single else f'job {number}'} left no result: {error}", file=sys.stderr)
        if lost:
            print("nlu: the same command with resume=auto and the same folder runs the rest", file=sys.stderr)
        # Jobs in other processes wrote their output into files.
        elsewhere = top / ".submitit"
        if failed and elsewhere.is_dir():
            print(f"nlu: their output is in {path_text(elsewhere)}", file=sys.stderr)


def _number_of(job: JobReturn) -> int:
    if isinstance(job, ElsewhereReturn):
        return job.number
    assert job.hydra_cfg is not None, "Hydra sets it before it runs a job"
    return job.hydra_cfg.hydra.job.num


def _folder_of(job: JobReturn) -> Path:
    if isinstance(job, ElsewhereReturn):
        return Path(job.folder)
    assert job.hydra_cfg is not None, "Hydra sets it before it runs a job"
    return Path(job.hydra_cfg.hydra.runtime.output_dir)
