"""The entry of commands with files and flags but no configuration; messages and exit codes are those of `app`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import nlu
from nlu.config.console import hide_tracebacks, leave_output
from nlu.config.errors import EXIT_USER_ERROR, UserError, print_error
from nlu.config.nearest import hint
from nlu.config.stopping import EXIT_INTERRUPTED


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
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            raise UserError(*(f"{flag}: unknown flag; {hint(flag, flags)}" for flag in named))
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
