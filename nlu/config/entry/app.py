"""The entry that every command shares: compose once, check everything, then run, with messages and exit codes.

0 is success, 1 a bug of ours with its traceback, 2 something that the user can correct, 130 Ctrl-C. 75 means that the
same command may succeed later: SIGTERM or SIGUSR1 stopped it, or a service did not answer. Showing a configuration
costs little more than Hydra: pydantic, which takes as long as all our modules, is imported when values are checked.
"""

import argparse
import errno
import functools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import hydra as hydra_package
from hydra import initialize_config_search_path
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.types import RunMode
from hydra.utils import execution_whitelist
from omegaconf import DictConfig, OmegaConf, read_write

import nlu
from nlu.config import stopping
from nlu.config.checks.composition_faults import fault_of, with_places
from nlu.config.checks.validate import problems, unknown_keys, unknown_names
from nlu.config.choices import EVALUATE, RUN, SCHEMAS, conf_dir, find_plugins, with_defaults
from nlu.config.command_line import (
    USER_MISTAKES,
    CommandLine,
    read_command_line,
)
from nlu.config.compose import Loader, compose
from nlu.config.console import hide_tracebacks, leave_output, printing
from nlu.config.entry.grid import current_grid, is_submitted, job_name, jobs_that_share, print_end, status_of
from nlu.config.entry.hydra_keys import current_config, is_sent, problems_of_hydra, send, whitelist
from nlu.config.errors import EXIT_USER_ERROR, UserError, is_temporary, print_error
from nlu.config.resolving import as_written, resolve, without_hydra
from nlu.config.sentences import counted
from nlu.config.targets import trust
from nlu.config.types import Config

_OF_A_DISK = [
    getattr(errno, name) for name in "ENOSPC EDQUOT EFBIG EACCES EPERM EROFS EEXIST ENOTDIR EISDIR ENAMETOOLONG".split()
]
"""Errors that a user can correct: no space, no permission, or a path that cannot be used."""

Task = Callable[[DictConfig], object]


def prepare(config: DictConfig, schema: str = RUN) -> Config:
    """Return the configuration as plain containers, resolved and valid. Raises UserError with all problems."""
    plain, found = _problems(config, schema)
    if found:
        raise UserError(*found)
    whole = with_defaults(plain, schema)
    if plugins := whole.get("plugins"):
        # A later command may use the run from another folder.
        whole["plugins"] = [str(Path(plugin).expanduser().absolute()) for plugin in plugins]
    return whole


def _problems(config: DictConfig, schema: str, refused: Collection[str] = ()) -> tuple[Config, list[str]]:
    """Return the plain configuration and its problems, without those of groups whose choice was `refused`."""
    plain, found = resolve(config)
    # A trained run has its own configuration: the job checks that with these keys, and training rows are not read.
    of_run = schema == EVALUATE and plain.get("run") is not None
    found += problems(plain, schema, with_cross_rules=not of_run and not refused)
    left_out = tuple(f"{group}{after}" for group in refused for after in (".", " ", ":", "["))
    return plain, [text for text in found if not text.startswith((*left_out, *(("data.train",) if of_run else ())))]


def run_app(
    task: Task,
    config_name: str,
    schema: str | None = None,
    config_dir: Path | None = None,
    run_folder: Callable[[str], Path] = Path,
) -> NoReturn:
    """Compose `config_name` with the command line, run `task` on it and exit.

    An integer that `task` returns is the exit code; for the jobs of a --multirun, the largest. A UserError is printed
    without a traceback, and the exit code is 2, or 75 if the error is temporary. In a --multirun the other jobs still
    run; the end of the output says which jobs failed, and where all of them are. `schema` is the dotted name of the
    dataclass of the top-level keys, by default that of the command; `config_dir` replaces `conf_dir()`;
    `run_folder` finds the run of --rerun.
    """
    hide_tracebacks()
    job = _Job(task)
    with stopping.listening():
        try:
            _run_app(job, config_name, schema or SCHEMAS.get(config_name, RUN), config_dir or conf_dir(), run_folder)
        except KeyboardInterrupt as error:
            print("; ".join([f"nlu: {stopping.sentence(error)}", *job.continuing()]), file=sys.stderr)
            sys.exit(stopping.exit_code(error))


def _run_app(
    job: "_Job", config_name: str, schema: str, directory: Path, run_folder: Callable[[str], Path]
) -> NoReturn:
    find_plugins()
    # A program of a user's own names its dataclass itself.
    trust({"trusted_packages": [schema.partition(".")[0]]})
    try:
        line = read_command_line(sys.argv[1:], run_folder)
        if line.flags.version:
            print(f"nlu {nlu.__version__}, Hydra {hydra_package.__version__}")
            sys.exit(0)
        if line.is_query:
            # A line that is still being typed may be wrong. A message would appear in the middle of it.
            with suppress(Exception), hydra_of(line, schema, directory) as hydra:
                hydra.shell_completion(config_name, line.overrides)
            sys.exit(0)
        name = line.flags.config_name or config_name
        with hydra_of(line, schema, directory) as hydra:
            if not _show(hydra, line, name, config_name):
                _run(hydra, job, line, name, schema)
    except UserError as error:
        print_error(error)
        sys.exit(_status_after(error))
    # The program that reads the output, such as `head`, has exited.
    except BrokenPipeError:
        if job.has_started:
            raise
        leave_output()
        sys.exit(0)
    sys.exit(max(job.exit_codes, default=0))


@contextmanager
def hydra_of(line: CommandLine, schema: str, directory: Path) -> Iterator[Hydra]:
    """Initialize Hydra with the folders of configuration files and our loader, until the block ends."""
    path = line.flags.config_path or str(directory.resolve())
    with initialize_config_search_path([path if "://" in path else f"file://{path}"]):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None, "it has just been initialized"
        search_path = hydra.config_loader.get_search_path()
        if line.flags.config_dir:
            folder = f"file://{Path(line.flags.config_dir).resolve()}"
            search_path.prepend("command-line", folder, SearchPathQuery(provider="schema"))
        hydra.config_loader = Loader(search_path, schema)
        yield hydra


def _show(hydra: Hydra, line: CommandLine, name: str, command: str) -> bool:
    """Show what the flags ask for; return whether they do."""
    flags = line.flags
    if flags.help:
        from nlu.config.entry.help import help_text

        composed = compose(_loader(hydra), name, line.overrides, is_multirun=False)
        if composed.problems:
            raise UserError(*composed.problems)
        print(help_text(command, composed.config))
    elif flags.hydra_help:
        hydra.hydra_help(None, get_args_parser(), argparse.Namespace(overrides=[]))
    elif flags.cfg:
        composed = compose(_loader(hydra), name, line.overrides, is_multirun=False)
        plain = as_written(without_hydra(composed.config))
        if found := [*composed.problems, *unknown_keys(plain, _loader(hydra).schema)]:
            raise UserError(*found)
        if flags.resolve and (unresolved := resolve(without_hydra(composed.config))[1]):
            raise UserError(*unresolved)
        package = None if flags.package == "_global_" else flags.package
        if package is not None and OmegaConf.select(composed.config, package) is None:
            raise UserError(f"--package is {package}, which the configuration does not have; give a key: trainer")
        hydra.compose_config = lambda **_: composed.config  # type: ignore[method-assign]
        with printing():
            hydra.show_cfg(name, [], flags.cfg, package, flags.resolve)
    elif flags.info:
        hydra.show_info(flags.info, name, line.overrides)
    elif flags.shell_completion:
        if command in SCHEMAS and sys.argv[0].endswith(".py"):
            # Shells complete the command that pip installs.
            sys.argv[0] = f"nlu-{command}"
        try:
            hydra.shell_completion(name, line.overrides)
        except ValueError as error:
            raise UserError(f"--shell-completion: {error}; write install=bash, fish or zsh") from error
    else:
        return False
    return True


def _loader(hydra: Hydra) -> Loader:
    assert isinstance(hydra.config_loader, Loader), "hydra_of has set it"
    return hydra.config_loader


def checked_composition(
    hydra: Hydra, config_name: str, overrides: Sequence[str], *, is_multirun: bool = False
) -> DictConfig:
    """Return the composed configuration. Raises UserError with every problem at once, also of Hydra's keys.

    The jobs of a --multirun are checked one by one later, unless the command line itself is wrong.
    """
    loader = _loader(hydra)
    # In the overrides, so that Hydra composes the jobs with it too.
    mode = ["hydra.mode=MULTIRUN"] if is_multirun else []
    composed = compose(loader, config_name, [*overrides, *mode], is_multirun=is_multirun)
    of_hydra = problems_of_hydra(composed, is_multirun)
    plain = as_written(without_hydra(composed.config))
    named = [one.key_or_group for one in composed.overrides if one.is_delete() or one.is_sweep_override()]
    found = [*composed.problems, *of_hydra, *unknown_names(plain, loader.schema, named)]
    if found or not is_multirun:
        swept = tuple(one.key_or_group for one in composed.overrides if one.is_sweep_override())
        with current_config(composed.config):
            _, own = _problems(without_hydra(composed.config), loader.schema, composed.refused)
        found += [text for text in own if not text.startswith(swept)] if swept else own
    if found:
        raise UserError(*with_places(found, config_name, loader, overrides))
    return composed.config


def _run(hydra: Hydra, job: "_Job", line: CommandLine, config_name: str, schema: str) -> None:
    """Run the job or the jobs of a command line, or exit if something is wrong."""
    # As given: a job composes itself from these in another process.
    with current_grid(partial(prepare, schema=schema), command=list(sys.argv)) as grid:
        job.swept = grid.swept
        try:
            is_multirun = line.is_multirun
            config = checked_composition(hydra, config_name, line.overrides, is_multirun=is_multirun)
            if more := jobs_that_share(config, config_name, line.overrides, is_multirun=is_multirun):
                grid.is_shared = is_multirun = True
                config = checked_composition(hydra, config_name, [*line.overrides, *more], is_multirun=True)
            grid.is_single = not is_multirun and is_sent(config)
            if grid.is_single:
                send(config)
            with execution_whitelist(whitelist()):
                run_composed(hydra, config, job.wrapped(), is_multirun=is_multirun or grid.is_single)
        except UserError:
            raise
        except Exception as error:
            if not job.has_started and (number := stopping.received()) is not None:
                # A signal raises `Stopped` within Hydra, whose clean-up may then fail and replace it.
                raise stopping.Stopped(number) from None
            key = "hydra.sweep.dir" if line.is_multirun else "hydra.run.dir"
            found = storage_problems(error, before_start=not job.has_started, key=key)
            # Before the task starts, such an error is a mistake of the command line; afterwards it is one of ours.
            if not found and not job.has_started and isinstance(error, USER_MISTAKES):
                found = [fault_of(error, config_name, _loader(hydra), line.overrides)]
            if not found:
                raise
            raise UserError(*found) from error
        finally:
            job.is_handed_over = grid.is_handed_over
    print_end(grid)
    statuses = list(map(status_of, grid.returned))
    job.exit_codes += [0] if grid.is_shared and 0 in statuses else statuses


def run_composed(hydra: Hydra, config: DictConfig, task: Task, *, is_multirun: bool = False) -> object:
    """Run a composed configuration as Hydra does: one job, or what the sweeper makes of it; return what they return."""
    with read_write(config.hydra):
        config.hydra.mode = RunMode.MULTIRUN if is_multirun else RunMode.RUN
    try:
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    except AssertionError as error:
        raise UserError(
            f"hydra.verbose is {config.hydra.verbose} but must be true, false or names of loggers"
        ) from error
    # Hydra would compose again here (read in 1.4.0rc3).
    hydra.compose_config = lambda **_: config  # type: ignore[method-assign]
    with current_config(config):
        name = config.hydra.job.config_name
        return hydra.multirun(name, task, []) if is_multirun else hydra.run(name, task, []).return_value


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
            # A launcher may have started this process, without `run_app`.
            with stopping.listening():
                return self._run(config)

        return run

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
                found = storage_problems(error)
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


def storage_problems(error: Exception, before_start: bool = False, key: str = "hydra.run.dir") -> list[str]:
    """Return what a user can do about an error of a disk; `key` sets the folder of the command."""
    known = (*_OF_A_DISK, *((errno.ENOENT, errno.EINVAL) if before_start else ()))
    for failure in (error, error.__cause__):
        if isinstance(failure, OSError) and failure.errno in known:
            said = (failure.strerror or "").lower()
            is_taken = failure.errno in (errno.EEXIST, errno.ENOTDIR)
            remedy = "" if is_taken else "free some space or correct the permissions, or "
            return [f"{failure.filename or 'a file'} cannot be used: {said}; {remedy}choose another {key}"]
    return []
