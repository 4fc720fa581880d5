"""The command line before Hydra reads it: its flags, `--rerun RUN`, short forms, completion in a shell.

Hydra's flags are those that its manual names for 1.4; a test compares them with what `--hydra-help` prints.

Completion is Hydra's: after `nlu-train -sc install=bash` the shell asks `nlu-train -sc query=bash` at each Tab. Hydra
completes installed commands and `python FILE`, but not `python -m MODULE`. So users complete `nlu-train`, which is the
same as `python -m nlu.train`.
"""

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nlu.config.checks.reading import quoted
from nlu.config.choices import conf_dir
from nlu.config.errors import UserError
from nlu.config.foreign import key_elsewhere

HIDDEN = "***"
"""What replaces a secret in a run's file `overrides`."""
_SWITCHES = {
    "--help": "-h",
    "--hydra-help": None,
    "--version": None,
    "--resolve": None,
    "--run": "-r",
    "--multirun": "-m",
    "--shell-completion": "-sc",
}
_VALUES = {"--cfg": "-c", "--package": "-p", "--config-path": "-cp", "--config-name": "-cn", "--config-dir": "-cd"}
_INFO = ("all", "aliases", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SHORT = {"folds": "folds.count", "input": "input.path"}
"""Groups that may be written for one of their keys."""
OURS = {"--interactive": "interactive=true", "--take": "take=true"}
"""Flags that stand for a key."""
FLAGS = frozenset((*_SWITCHES, *_VALUES, "--info"))
"""The long names of Hydra's flags."""


@dataclass(frozen=True)
class CommandLine:
    """A command line whose short forms are written out."""

    overrides: list[str]
    flags: argparse.Namespace
    """the values of all flags by name, such as `cfg` and `config_path`, which is absolute or an address"""

    @property
    def is_multirun(self) -> bool:
        return self.flags.multirun or "hydra.mode=MULTIRUN" in self.overrides

    @property
    def is_query(self) -> bool:
        """whether a shell asks for completions"""
        return self.flags.shell_completion and "".join(self.overrides).startswith("query=")


def read_command_line(arguments: Sequence[str], run_folder: Callable[[str], Path] = Path) -> CommandLine:
    """Return the command line; `run_folder` finds the run of --rerun.

    Raises UserError if it cannot be read.
    """
    # Intermixed: flags and overrides come in any order.
    given = _parser().parse_intermixed_args([OURS.get(text, text) for text in arguments])
    overrides = [quoted(short_form(text)) for text in given.overrides]
    if given.rerun is not None:
        saved = _parser().parse_intermixed_args(_saved(run_folder(given.rerun)))
        overrides = _merged([quoted(short_form(text)) for text in saved.overrides], overrides, given.rerun)
        given.config_dir = given.config_dir or saved.config_dir
    if given.config_path is not None and "://" not in given.config_path:
        # For Hydra it would be relative to the installed file of the command.
        given.config_path = str(Path(given.config_path).resolve())
    if given.config_dir is not None and not Path(given.config_dir).is_dir():
        raise UserError(f"--config-dir is {given.config_dir!r}, which is not found; give it an existing folder")
    return CommandLine(_last_choices(overrides), given)


def _last_choices(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the last choice of each group only, as the last value of a key counts."""
    last = {text.partition("=")[0]: place for place, text in enumerate(overrides)}
    return [
        text
        for place, text in enumerate(overrides)
        if last[key := text.partition("=")[0]] == place or not (conf_dir() / key).is_dir()
    ]


def short_form(argument: str) -> str:
    """Return what a short form stands for: `folds=5` is `folds.count=5`, `input=F` is `input.path=F`.

    Hydra would replace the whole mapping by the number.
    """
    key, equals, value = argument.partition("=")
    if key not in SHORT or not equals or value.startswith("{"):
        return argument
    return f"{SHORT[key]}={'null' if (key, value) == ('folds', 'none') else value}"


def _saved(run: Path) -> list[str]:
    """Return the arguments in the file `overrides` of a run, which quotes them as a shell does."""
    path = run.expanduser() / "overrides"
    try:
        return shlex.split(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--rerun is {run}, but {path} does not exist; give the folder of a run") from None
    except (OSError, ValueError) as error:
        raise UserError(f"--rerun is {run}, but {path} cannot be read: {error}; give another run") from error


def _merged(saved: list[str], given: list[str], run: str) -> list[str]:
    """Return the saved overrides whose key is not given again, and the given ones after them."""
    again = {_key(text) for text in given}
    added = {_key(text) for text in saved if text.startswith("+")}
    # A group that the saved line added is in no list of defaults, so another choice of it needs the plus sign too.
    given = [f"+{text}" if _key(text) in added and text[0] not in "+~" else text for text in given]
    kept = [text for text in saved if _key(text) not in again]
    if hidden := [_key(text) for text in kept if HIDDEN in text]:
        raise UserError(
            *(f"{key} held a secret, which {run}/overrides does not contain; give {key}=VALUE again" for key in hidden)
        )
    return [*kept, *given]


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        names = [name.replace("-", "_") for name in re.findall(r"(?<!\S)--([\w.-]+)", message)]
        if "experimental_rerun" in names:
            raise UserError(f"{message}; write --rerun RUN, which repeats a run with changed keys")
        elsewhere = [f"for --{name} {text}; " for name in names if (text := key_elsewhere(name)) is not None]
        raise UserError(
            f"{message}; {''.join(elsewhere)}keys are written key=value, without dashes; "
            "see --help, and --hydra-help for flags"
        )


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for flag, short in _SWITCHES.items():
        parser.add_argument(*filter(None, (flag, short)), action="store_true")
    for flag, short in _VALUES.items():
        parser.add_argument(flag, short, choices=("job", "hydra", "all") if flag == "--cfg" else None)
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=_INFO)
    parser.add_argument("--rerun", metavar="RUN")
    return parser
