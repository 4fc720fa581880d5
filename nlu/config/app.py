"""The entry that every command shares: Hydra composes, users get messages, programs get exit codes.

0 is success, 1 a bug of ours with its traceback, 2 something the user can mend, 130 an interrupt.
"""

import errno
import functools
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import SearchPathException
from hydra.types import RunMode
from omegaconf import DictConfig

import nlu
from nlu.config.defaults import with_defaults
from nlu.config.errors import EXIT_USER_ERROR, UserError, print_error
from nlu.config.grid import Grid, checked_grid, job_name, print_end, status_of
from nlu.config.overrides import USER_MISTAKES, composition_problem, override_problems
from nlu.config.resolve import resolve
from nlu.config.submitted import grid_problems
from nlu.config.validate import RUN, problems

EXIT_INTERRUPTED = 130
_PERMISSION = (
    "permission denied; change its permissions, or choose another place (hydra.run.dir, NLU_CACHE, data.train)"
)
_NOT_A_FOLDER = "a file is where a folder is wanted; choose another hydra.run.dir"
_STORAGE = {
    errno.ENOSPC: "the disk is full; free some space or write elsewhere",
    errno.EDQUOT: "your quota is used up; free some space or write elsewhere",
    errno.EFBIG: "the file system allows no file of this size; write elsewhere",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
}

Task = Callable[[DictConfig], Any]


def conf_dir() -> Path:
    """Return the directory of the configuration files: inside the package when installed, beside it in a checkout."""
    package = Path(nlu.__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def find_plugins() -> None:
    """Have Hydra, and the jobs it starts, find the plugins of a checkout; installed ones it finds by itself."""
    plugins = Path(nlu.__file__).resolve().parents[1] / "launchers"
    if (plugins / "hydra_plugins").is_dir() and str(plugins) not in sys.path:
        sys.path.append(str(plugins))
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([known] if known else []), str(plugins)])


def prepare(config: DictConfig, schema: str = RUN) -> dict[str, Any]:
    """Return the configuration as plain containers, resolved and valid. Raises UserError with all problems."""
    plain, unresolved = resolve(config)
    found = unresolved + problems(plain, schema)
    if found:
        raise UserError(*found)
    return with_defaults(plain, schema)


def run_app(task: Task, config_name: str, schema: str = RUN, config_dir: Path | None = None) -> NoReturn:
    """Compose `config_name` with the command line, run `task` on it and exit.

    An integer that `task` returns is the exit code; of the jobs of a --multirun, the largest. A UserError is printed
    without a traceback and exits with 2, in a --multirun after the other jobs have run; which these were, and where all
    of them lie, is said at the end. `schema` is the dotted name of the dataclass of the top-level keys, `config_dir`
    replaces `conf_dir()`.
    """
    # Hydra then raises its errors instead of printing them and exiting with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    directory = (config_dir or conf_dir()).resolve()
    find_plugins()
    sys.argv = [sys.argv[0], *map(short_form, sys.argv[1:])]
    grid = Grid()
    job = _Job(task, grid.swept)
    try:
        require_known_flags()
        with checked_grid(grid, partial(prepare, schema=schema)):
            hydra.main(config_path=str(directory), config_name=config_name)(job.wrapped())()
    except KeyboardInterrupt:
        print("nlu: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except UserError as error:
        # A sweeper's, before or between its jobs.
        print_error(error)
        sys.exit(EXIT_USER_ERROR)
    except BrokenPipeError:
        if job.has_started:
            raise
        # Whoever reads `--help` or `--cfg` has seen enough; nothing more can be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        found = _storage_problems(error, before_start=not job.has_started) or grid_problems(error)
        if not found and not job.has_started and isinstance(error, USER_MISTAKES):
            found = _composition_problems(error, config_name, directory, schema)
        if not found:
            raise
        print_error(UserError(*found))
        sys.exit(EXIT_USER_ERROR)
    print_end(grid.returned)
    sys.exit(max([*job.exit_codes, *map(status_of, grid.returned)], default=0))


def short_form(argument: str) -> str:
    """Return what a short form of the command line stands for: `folds=5` is `folds.count=5`.

    Hydra itself would put the number in the place of the whole mapping, and takes no numbers for choices of a group.
    """
    key, equals, value = argument.partition("=")
    if key != "folds" or not equals or value.startswith("{"):
        return argument
    return f"folds.count={'null' if value == 'none' else value}"


def require_known_flags() -> None:
    """Raise UserError for a flag that does not exist or lacks its value; Hydra itself would print its own usage."""

    def refuse(message: str) -> NoReturn:
        raise UserError(
            f"{message}; keys are written key=value, without dashes; see --help, and --hydra-help for flags"
        )

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_intermixed_args()


class _Job:
    """Runs a task for Hydra and keeps what Hydra does not pass on: exit codes, and whether the task was reached."""

    def __init__(self, task: Task, swept: Sequence[str]):
        self.task, self.swept = task, swept
        self.has_started = False
        self.exit_codes: list[int] = []

    def wrapped(self) -> Task:
        # Hydra names the job after the module of the function that it unwraps.
        @functools.wraps(self.task)
        def run(config: DictConfig) -> Any:
            return self.run(config)

        return run

    def run(self, config: DictConfig) -> Any:
        self.has_started = True
        try:
            result = self.task(config)
        except Exception as error:
            if not isinstance(error, UserError):
                found = _storage_problems(error)
                if not found:
                    raise
                error = UserError(*found)
            print_error(error, of_job=self.label())
            result = EXIT_USER_ERROR
        if config.get("trial") is not None:
            # What becomes of a search's trials is the search's business.
            return result
        is_exit_code = isinstance(result, int) and not isinstance(result, bool)
        self.exit_codes.append(result if is_exit_code else 0)
        return result

    def label(self) -> str:
        """Return which job of a --multirun speaks, as it begins a line; nothing of a single run."""
        hydra_config = HydraConfig.get()
        if hydra_config.mode != RunMode.MULTIRUN:
            return ""
        return f"{job_name(hydra_config.job.num, hydra_config.overrides.task, self.swept)}: "


def _composition_problems(error: Exception, config_name: str, directory: Path, schema: str) -> list[str]:
    is_about_flags = type(error) is ValueError and "--" in str(error)
    if is_about_flags or isinstance(error, yaml.YAMLError | SearchPathException):
        # The overrides are not to blame, and cannot be tried before this is mended.
        return [composition_problem(error, config_name)]
    arguments = get_args_parser().parse_intermixed_args()
    overrides = arguments.overrides
    is_multirun = arguments.multirun or "hydra.mode=MULTIRUN" in overrides
    config_name = arguments.config_name or config_name
    search_path = [_uri(arguments.config_path or str(directory))]
    if arguments.config_dir and Path(arguments.config_dir).is_dir():
        search_path.append(_uri(str(Path(arguments.config_dir).resolve())))
    # A relative --config-path is relative to a place that only Hydra knows.
    is_absolute = all("://" in entry for entry in search_path)
    found = override_problems(config_name, search_path, overrides, schema, is_multirun) if is_absolute else []
    return found or [composition_problem(error, config_name)]


def _uri(directory: str) -> str:
    return f"file://{directory}" if Path(directory).is_absolute() else directory


def _storage_problems(error: Exception, before_start: bool = False) -> list[str]:
    for failure in (error, error.__cause__):
        if isinstance(failure, OSError) and failure.errno is not None:
            remedy = _STORAGE.get(failure.errno)
            if remedy is None and before_start and failure.errno in (errno.ENOENT, errno.EINVAL):
                remedy = "no folder can be made there; choose another hydra.run.dir"
            if remedy is not None:
                return [f"{failure.filename or 'a file'} cannot be used: {remedy}"]
    return []
