"""The entry that every command shares: Hydra composes, users get messages, programs get exit codes.

0 is success, 1 a bug of ours with its traceback, 2 something that the user can correct, 130 Ctrl-C. 75 means that the
same command may succeed later: SIGTERM or SIGUSR1 stopped it, or a service did not answer. Modules that only checks
need are imported late, so that showing a configuration costs little more than Hydra.
"""

import errno
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import SearchPathException
from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig

import nlu
from nlu.config import stopping
from nlu.config.checks.composing import composing_once, resolve
from nlu.config.checks.reading import USER_MISTAKES
from nlu.config.choices import EVALUATE, RUN, SCHEMAS, conf_dir, with_defaults
from nlu.config.console import hide_tracebacks, leave_output
from nlu.config.entry.flags import (
    CommandLine,
    completion_query,
    installed_command,
    is_completion_query,
    read_command_line,
)
from nlu.config.entry.grid import current, current_grid, job_name, print_end, status_of
from nlu.config.entry.guard import as_multirun, hydra_problems, require_safe, whitelist
from nlu.config.errors import EXIT_USER_ERROR, UserError, print_error
from nlu.config.hydra_private import adapt_hydra
from nlu.config.submitted import grid_problems, is_submitted
from nlu.config.words import counted
from nlu.storage.temporary import is_temporary

_PERMISSION = "permission denied; change its permissions, or give a place where you may read and write"
_NOT_A_FOLDER = "a file is where a folder is needed; choose another hydra.run.dir"
_STORAGE = {
    errno.ENOSPC: "the disk is full; free some space or write elsewhere",
    errno.EDQUOT: "your quota is used up; free some space or write elsewhere",
    errno.EFBIG: "the file system allows no file of this size; write elsewhere",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "the file system is read-only; mount it writable, or write elsewhere",
    errno.EEXIST: _NOT_A_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: "a folder is where a file is needed; give the path of a file",
}

Task = Callable[[DictConfig], object]


def find_plugins() -> None:
    """Make Hydra and the jobs it starts find the plugins of a checkout; installed plugins are found anyway."""
    plugins = Path(nlu.__file__).resolve().parents[1] / "launchers"
    if not (plugins / "hydra_plugins").is_dir():
        return
    if str(plugins) not in sys.path:
        sys.path.append(str(plugins))
    known = os.environ.get("PYTHONPATH")
    # Jobs are other processes, and inherit the environment.
    if str(plugins) not in (known or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([*([known] if known else []), str(plugins)])


def prepare(config: DictConfig, schema: str = RUN) -> dict[str, Any]:
    """Return the configuration as plain containers, resolved and valid. Raises UserError with all problems."""
    from nlu.config.checks.validate import problems

    plain, unresolved = resolve(config)
    of_run = schema == EVALUATE and plain.get("run") is not None
    found = unresolved + problems(plain, schema, with_cross_rules=not of_run)
    if of_run:
        # The job checks the configuration of the run with these keys. Training rows are not read.
        found = [text for text in found if not text.startswith("data.train")]
    if found:
        raise UserError(*found)
    return with_defaults(plain, schema)


def run_app(task: Task, config_name: str, schema: str | None = None, config_dir: Path | None = None) -> NoReturn:
    """Compose `config_name` with the command line, run `task` on it and exit.

    An integer that `task` returns is the exit code; for the jobs of a --multirun, the largest. A UserError is printed
    without a traceback, and the exit code is 2, or 75 if the error is temporary. In a --multirun the other jobs still
    run; the end of the output says which jobs failed, and where all of them are. `schema` is the dotted name of the
    dataclass of the top-level keys, by default that of the command; `config_dir` replaces `conf_dir()`.
    """
    hide_tracebacks()
    job = _Job(task)
    with stopping.listening():
        try:
            _run_app(job, config_name, schema or SCHEMAS.get(config_name, RUN), config_dir)
        except KeyboardInterrupt as error:
            print("; ".join([f"nlu: {stopping.sentence(error)}", *job.continuing()]), file=sys.stderr)
            sys.exit(stopping.exit_code(error))


def _run_app(job: "_Job", config_name: str, schema: str, config_dir: Path | None) -> NoReturn:
    # Makes Hydra raise its errors; otherwise it prints them and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    directory = (config_dir or conf_dir()).resolve()
    find_plugins()
    adapt_hydra()
    try:
        line = read_command_line(sys.argv[1:])
        if "--version" in line.flags:
            print(f"nlu {nlu.__version__}, Hydra {hydra.__version__}")
            sys.exit(0)
        if line.completes:
            _complete(line, job, config_name, directory)
    except UserError as error:
        print_error(error)
        sys.exit(EXIT_USER_ERROR)
    # As given: `sys.argv` is rewritten for Hydra below.
    with current_grid(partial(prepare, schema=schema), command=list(sys.argv)) as grid:
        job.swept = grid.swept
        try:
            with composing_once(), _collecting_later():
                _run(job, line, line.config_name or config_name, directory, schema)
        finally:
            job.is_handed_over = grid.is_handed_over
    print_end(grid)
    sys.exit(max([*job.exit_codes, *map(status_of, grid.returned)], default=0))


def _complete(line: CommandLine, job: "_Job", config_name: str, directory: Path) -> NoReturn:
    """Answer a shell's request for completion, and exit. Raises UserError for an unknown request."""
    if is_completion_query(line):
        if (question := completion_query(line)) is not None:
            line, os.environ["COMP_LINE"] = question
            # A line that is still being typed may be wrong. A message would appear in the middle of it.
            with suppress(Exception):
                _compose_and_run(job, line, config_name, directory, [], RUN)
        sys.exit(0)
    sys.argv[0] = installed_command(sys.argv[0], config_name)
    _compose_and_run(job, line, config_name, directory, [], RUN)
    sys.exit(0)


def _run(job: "_Job", line: CommandLine, config_name: str, directory: Path, schema: str) -> None:
    """Have Hydra run the job, or show what was asked for; exit if it cannot."""
    search_path = _search_path(line, directory)
    try:
        try:
            _compose_and_run(job, line, config_name, directory, search_path, schema)
        except USER_MISTAKES:
            if job.has_started or stopping.received() is not None:
                raise
            from nlu.config.checks.overrides import with_known_keys

            # Tried only after Hydra has refused the line, because it composes once more.
            completed = with_known_keys(config_name, search_path, line.overrides, schema)
            if completed == line.overrides:
                raise
            line = replace(line, overrides=completed)
            _compose_and_run(job, line, config_name, directory, search_path, schema)
    except UserError as error:
        # Raised by a sweeper, before or between its jobs.
        print_error(error)
        sys.exit(_status_after(error))
    # The program that reads the output, such as `head`, has exited.
    except BrokenPipeError:
        if job.has_started:
            raise
        leave_output()
        sys.exit(0)
    except Exception as error:
        if not job.has_started and (number := stopping.received()) is not None:
            # A signal raises `Stopped` within Hydra, whose clean-up may then fail and replace it.
            raise stopping.Stopped(number) from None
        found = _storage_problems(error, before_start=not job.has_started) or grid_problems(error)
        # Before the task starts, such an error is a mistake of the command line; afterwards it is one of ours.
        if not found and not job.has_started and isinstance(error, USER_MISTAKES):
            found = _composition_problems(error, config_name, search_path, line, schema)
        if not found:
            raise
        print_error(UserError(*found))
        sys.exit(EXIT_USER_ERROR)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Switch garbage collection off until a job begins or the block ends: composing creates hardly any garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compose_and_run(
    job: "_Job", line: CommandLine, config_name: str, directory: Path, search_path: list[str], schema: str
) -> None:
    trusted: list[str] = []
    # A command that only shows something builds nothing, so it needs no check.
    if line.runs_jobs:
        try:
            checked = require_safe(config_name, search_path, line.overrides, line.is_multirun)
        except UserError as error:
            raise UserError(*error.problems, *_override_problems(config_name, search_path, line, schema)) from None
        trusted = checked.trusted
        if checked.launched_dir is not None:
            if (grid := current()) is not None:
                grid.is_single = True
            line = replace(
                line, flags=[*line.flags, "--multirun"], overrides=as_multirun(line.overrides, checked.launched_dir)
            )
    sys.argv = [sys.argv[0], *line.arguments]
    if line.runs_jobs:
        gc.enable()
    main = hydra.main(config_path=str(directory), config_name=config_name, execution_whitelist=whitelist(trusted))
    main(job.wrapped())()


class _Job:
    """Runs a task for Hydra and keeps what Hydra does not return: exit codes, and whether the task has started."""

    def __init__(self, task: Task):
        self.task = task
        self.swept: Sequence[str] = ()
        self.has_started = self.is_handed_over = False
        self.grid_folder: str | None = None
        """folder of a grid that runs in this process"""
        self.exit_codes: list[int] = []

    def wrapped(self) -> Task:
        # Hydra names the job after the module of the function that it unwraps.
        @functools.wraps(self.task)
        def run(config: DictConfig) -> object:
            return self.run(config)

        return run

    def run(self, config: DictConfig) -> object:
        # A launcher may have started this process, without `run_app`.
        with stopping.listening():
            return self._run(config)

    def _run(self, config: DictConfig) -> object:
        self.has_started = True
        is_trial = isinstance(config.get("trial"), DictConfig)
        if HydraConfig.get().mode == RunMode.MULTIRUN and not is_trial and not is_submitted():
            self.grid_folder = str(HydraConfig.get().sweep.dir)
        try:
            # Hydra's whitelist is meant for Hydra's own keys. For other targets there is `trusted_packages`.
            with execution_whitelist(None, reset=True):
                result = self.task(config)
        except Exception as error:
            if not isinstance(error, UserError):
                found = _storage_problems(error)
                if not found:
                    raise
                error = UserError(*found)
            print_error(error, of_job=self.label())
            result = _status_after(error)
        if is_trial:
            # The search handles the results of its trials.
            return result
        exit_code = result if isinstance(result, int) and not isinstance(result, bool) else 0
        if exit_code in stopping.STOPPED and self.grid_folder is not None and (number := stopping.received()):
            # Otherwise the launcher would start the next job.
            raise stopping.Stopped(number)
        self.exit_codes.append(exit_code)
        return result

    def continuing(self) -> list[str]:
        """Return what to print about the remaining jobs after a signal; a single run prints that itself."""
        if self.is_handed_over:
            return ["submitted jobs continue; the same command finds them"]
        if not self.has_started:
            return ["nothing had started; the same command starts it"]
        if self.grid_folder is None:
            return []
        return [
            f"{counted(len(self.exit_codes), 'job')} had ended",
            f"the same command with hydra.sweep.dir={self.grid_folder} resume=auto runs the rest",
        ]

    def label(self) -> str:
        """Return the name of this job of a --multirun as the beginning of a line; "" for a single run."""
        hydra_config = HydraConfig.get()
        if hydra_config.mode != RunMode.MULTIRUN:
            return ""
        return f"{job_name(hydra_config.job.num, hydra_config.overrides.task, self.swept)}: "


def _status_after(error: UserError) -> int:
    """Return the exit status after an error; after a temporary one it asks for another start."""
    return stopping.EXIT_REQUEUE if is_temporary(error) else EXIT_USER_ERROR


def _composition_problems(
    error: Exception, config_name: str, search_path: list[str], line: CommandLine, schema: str
) -> list[str]:
    from nlu.config.checks.overrides import composition_problem

    if isinstance(error, yaml.YAMLError | SearchPathException):
        # A file is wrong, so the overrides cannot be checked.
        return [composition_problem(error, config_name)]
    found = _override_problems(config_name, search_path, line, schema)
    return found or [composition_problem(error, config_name)]


def _override_problems(config_name: str, search_path: list[str], line: CommandLine, schema: str) -> list[str]:
    from nlu.config.checks.overrides import override_problems

    return override_problems(config_name, search_path, line.overrides, schema, line.is_multirun, hydra_problems)


def _search_path(line: CommandLine, directory: Path) -> list[str]:
    search_path = [_uri(line.config_path or str(directory))]
    return [*search_path, _uri(str(Path(line.config_dir).resolve()))] if line.config_dir else search_path


def _uri(directory: str) -> str:
    return f"file://{directory}" if Path(directory).is_absolute() else directory


def _storage_problems(error: Exception, before_start: bool = False) -> list[str]:
    for failure in (error, error.__cause__):
        if isinstance(failure, OSError) and failure.errno is not None:
            remedy = _STORAGE.get(failure.errno)
            if remedy is None and before_start and failure.errno in (errno.ENOENT, errno.EINVAL):
                remedy = "no folder can be created there; choose another hydra.run.dir"
            if remedy is not None:
                return [f"{failure.filename or 'a file'} cannot be used: {remedy}"]
    return []
