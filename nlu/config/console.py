"""What commands print: text that a reader may stop reading, the verdict of a dry run, tracebacks without secrets."""

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TextIO

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf, read_write

from nlu.config.errors import UserError
from nlu.config.resolving import resolve, without_hydra
from nlu.storage.redaction import hide

_VERDICT = """\
# Every key, type, range, path and rule between groups holds. Nothing was run or read: what only the data, the
# weights or the device can tell shows when a run begins."""


@contextmanager
def printing(to: TextIO | None = None) -> Iterator[None]:
    """Flush what the block prints; end the block without an error if the reader has closed the stream, as `head` does.

    The block must only print, and only to `to`, by default standard output.
    """
    try:
        yield
        (to or sys.stdout).flush()
    except BrokenPipeError:
        leave_output(to)


def leave_output(to: TextIO | None = None) -> None:
    """Discard what is not printed yet: a closed pipe can take nothing more, and Python flushes it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (to or sys.stdout).fileno())


def print_configuration(
    hydra: Hydra, config: DictConfig, what: Literal["job", "hydra", "all"], package: str | None, *, is_resolved: bool
) -> None:
    """Print what `--cfg` shows: the job's keys, Hydra's or all of them, or the part named by a package."""
    HydraConfig.instance().set_config(config)
    if is_resolved and (found := resolve(without_hydra(config))[1]):
        raise UserError(*found)
    with read_write(config.hydra):
        shown = hydra.get_sanitized_cfg(config, what)
    node = OmegaConf.select(shown, package) if package not in (None, "_global_") else shown
    if node is None:
        raise UserError(f"--package is {package}, which the configuration does not have; give a key such as trainer")
    with printing():
        if isinstance(node, DictConfig | ListConfig):
            if is_resolved:
                OmegaConf.resolve(node)
            print(f"# @package {package}\n" * (package is not None) + OmegaConf.to_yaml(node), end="")
        else:
            print(node)


def print_dry_run(config: dict[str, object]) -> int:
    """Print what `dry_run=true` shows: the configuration and the verdict. Return 0."""
    import yaml

    with printing():
        print(yaml.safe_dump(config, allow_unicode=True, sort_keys=False), end="")
        print()
        print(_VERDICT)
    return 0


def print_dry_run_of_grid(job_names: Sequence[str]) -> None:
    """Print the jobs of a grid, and the verdict on all of them."""
    with printing():
        for name in job_names:
            print(f"# {name}")
        print(_VERDICT)


def hide_tracebacks() -> None:
    """Make this process print uncaught errors as Python does, but without secrets."""
    # Python calls a separate hook for errors in threads.
    sys.excepthook = lambda kind, error, trace: print_traceback(error)
    threading.excepthook = _print_uncaught_in_thread


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error without secrets."""
    sys.stderr.write(traceback_of(error))
    sys.stderr.flush()


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error without secrets: addresses in the texts of libraries may hold some."""
    return hide("".join(traceback.format_exception(error)))


def _print_uncaught_in_thread(given: threading.ExceptHookArgs) -> None:
    if given.exc_value is None or isinstance(given.exc_value, SystemExit):
        return
    name = given.thread.name if given.thread is not None else "a thread"
    sys.stderr.write(f"Exception in thread {name}:\n")
    print_traceback(given.exc_value)
