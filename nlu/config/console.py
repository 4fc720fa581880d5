"""What commands print: text that a reader may stop reading, the verdict of a dry run, tracebacks without secrets."""

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from nlu.config.redaction import hide

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
