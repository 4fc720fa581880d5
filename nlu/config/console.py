"""What commands print: text that a reader may stop reading, the verdict of a dry run, tracebacks without secrets.

`run_command` is the entry of commands with files and flags but no configuration; their messages and exit codes are
those of `nlu.config.entry.app`.
"""

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, TextIO

import nlu
from nlu.config.errors import EXIT_USER_ERROR, UserError, print_error
from nlu.config.nearest import hint
from nlu.config.redaction import hide
from nlu.config.stopping import EXIT_INTERRUPTED

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


class Parser(argparse.ArgumentParser):
    """Parses flags. Errors are UserErrors; for an unknown flag they name the nearest one."""

    def __init__(self, *, prog: str, description: str):
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument("--version", action="version", version=f"nlu {nlu.__version__}", help="print it and exit")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the values. Raises UserError for an unknown flag, and for a missing or wrong value."""
        # `parse_args` would report unknown flags without the nearest ones.
        values, unknown = self.parse_known_args(arguments)
        # Only flags are reported, since what follows an unknown flag may be its value.
        named = [text.partition("=")[0] for text in unknown if text.startswith("-")]
        if named:
            # The names of earlier versions: loaded for an error only.
            from nlu.config.foreign import key_elsewhere

            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            raise UserError(*(f"{flag}: unknown flag; {key_elsewhere(flag) or hint(flag, flags)}" for flag in named))
        if unknown:
            count = "one argument" if len(unknown) == 1 else f"{len(unknown)} arguments"
            self.error(f"{', '.join(unknown)}: {count} too many")
        return values

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def at_least(lowest: int) -> Callable[[str], int]:
    """Return the type of a flag that takes whole numbers >= `lowest`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"is {text!r} but must be a whole number >= {lowest}")
        return int(text)

    return read


def run_command(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run `main` on the arguments of the process and exit with the status it returns, or with 2 after a UserError."""
    hide_tracebacks()
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("nlu: interrupted", file=sys.stderr)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        leave_output()
        status = 0
    except UserError as error:
        print_error(error)
        status = EXIT_USER_ERROR
    sys.exit(status)
