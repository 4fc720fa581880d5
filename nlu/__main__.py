"""List the commands; each is a module with its own --help."""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

import nlu
from nlu.config.console import run_command
from nlu.config.errors import EXIT_USER_ERROR, UserError, print_error
from nlu.config.foreign import key_elsewhere
from nlu.config.nearest import hint


def main(arguments: Sequence[str]) -> int:
    """Print the commands; without --help it is an error that the command is missing."""
    if list(arguments) == ["--version"]:
        print(f"nlu {nlu.__version__}")
        return 0
    here = Path(__file__).parent
    # By the files, so that a new command is listed without an entry anywhere. Files with an underscore in front are not
    # commands.
    commands = {path.stem: path for path in sorted(here.glob("commands/[!_]*.py"))}
    names = [argument for argument in arguments if not argument.startswith("-")]
    if names and names[0] in commands:
        # Not started from here: each command sets the environment before its own imports.
        raise UserError(f"a command is started by its module; write python -m nlu.{' '.join(names)}")
    is_asked = bool({"--help", "-h"} & set(arguments)) and not names
    shown = sys.stdout if is_asked else sys.stderr
    if names:
        meant = key_elsewhere(names[0]) or hint(names[0], commands)
        print_error(UserError(f"unknown command {names[0]}; {meant}"))
    print("usage: python -m nlu.NAME; each command has its own --help", file=shown)
    for name, path in commands.items():
        # Parsed, not imported: importing all commands would take seconds.
        summary = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        print(f"  python -m nlu.{name:<12}{summary}", file=shown)
    return 0 if is_asked else EXIT_USER_ERROR


if __name__ == "__main__":
    run_command(main)
