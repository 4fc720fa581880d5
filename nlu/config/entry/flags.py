"""The command line before Hydra reads it: its flags, `@FILE`, `--rerun RUN` and what is written short.

Hydra's flags are those that its manual names for 1.4; a test compares them with what `--hydra-help` prints.
"""

import argparse
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nlu.config.checks.quoting import quoted
from nlu.config.choices import conf_dir
from nlu.config.errors import UserError
from nlu.storage.places import is_object

HIDDEN = "***"
"""stands in a run's file `overrides` for a secret"""
_SWITCHES = {
    "--help": "-h", "--hydra-help": None, "--version": None, "--resolve": None, "--run": "-r", "--multirun": "-m",
    "--shell-completion": "-sc",
}  # fmt: skip
_VALUES = {"--cfg": "-c", "--package": "-p", "--config-path": "-cp", "--config-name": "-cn", "--config-dir": "-cd"}
_INFO = ("all", "aliases", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SHORT = {"folds": "folds.count", "input": "input.path"}
"""groups that are written by one of their keys"""
OURS = {"--interactive": "interactive=true"}
"""flags of our own, each a key written short"""
FLAGS = frozenset((*_SWITCHES, *_VALUES, "--info"))
"""Hydra's flags, by their long names"""


@dataclass(frozen=True)
class CommandLine:
    """What was asked for."""

    flags: list[str]
    overrides: list[str]
    config_name: str | None
    config_path: str | None
    """where a path: absolute, or with a scheme"""
    config_dir: str | None
    is_multirun: bool
    runs_jobs: bool
    """and does not only show something"""
    completes: bool
    """what a shell asks for: --shell-completion"""

    @property
    def arguments(self) -> list[str]:
        """All of it in a form that Hydra reads."""
        return [*self.flags, *self.overrides]


def read_command_line(arguments: Sequence[str]) -> CommandLine:
    """Return the command line with its files read. Raises UserError for what neither Hydra nor we can read."""
    _require_one_choice(arguments)
    given = _parser().parse_intermixed_args([OURS.get(text, text) for text in _with_files(arguments)])
    overrides = [quoted(short_form(text)) for text in given.overrides]
    if given.rerun is not None:
        saved = _parser().parse_intermixed_args(_saved(_run_folder(given.rerun)))
        overrides = _merged([quoted(short_form(text)) for text in saved.overrides], overrides, given.rerun)
        given.config_dir = given.config_dir or saved.config_dir
    if given.config_path is not None and "://" not in given.config_path:
        # Hydra would take it as relative to the file of the command, wherever that is installed.
        given.config_path = str(Path(given.config_path).resolve())
    _require_sense(given)
    shown = given.cfg or given.info or given.shell_completion or given.help or given.hydra_help or given.version
    return CommandLine(
        list(_flags(given)), overrides, given.config_name, given.config_path, given.config_dir,
        is_multirun=given.multirun or "hydra.mode=MULTIRUN" in overrides, runs_jobs=not shown,
        completes=given.shell_completion,
    )  # fmt: skip


def short_form(argument: str) -> str:
    """Return what a short form of the command line stands for: `folds=5` is `folds.count=5`, `input=F` `input.path=F`.

    Hydra itself would put the number in the place of the whole mapping, and takes no numbers for choices of a group.
    """
    key, equals, value = argument.partition("=")
    if key not in SHORT or not equals or value.startswith("{"):
        return argument
    return f"{SHORT[key]}={'null' if (key, value) == ('folds', 'none') else value}"


def read_overrides(path: Path) -> list[str]:
    """Return the arguments that stand one a line in a file, such as the file `overrides` of a run.

    A line is taken as it stands, without quotes for a shell, or as a run's file has it: each piece in quotes where it
    needs them, and a backslash at the end of a line that continues on the next one. Empty lines, and those that begin
    with `#`, are left out. Raises UserError where the file cannot be read.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path} cannot be read: {reason}; give a text file with one override a line") from error
    return list(_joined(text.split("\n"), path))


def _joined(lines: Iterable[str], path: Path) -> Iterator[str]:
    pieces: list[str] = []
    for number, line in enumerate(lines, 1):
        if not pieces and (not line.strip() or line.lstrip().startswith("#")):
            continue
        goes_on = line.endswith("\\")
        pieces.append(_unquoted(line.removesuffix("\\").strip(), f"{path}:{number}"))
        if not goes_on:
            yield "\n".join(pieces)
            pieces = []
    if pieces:
        yield "\n".join(pieces)


def _unquoted(text: str, place: str) -> str:
    if not text.startswith("'"):
        return text
    try:
        (argument,) = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"{place} is {text}, which is not one override; close its quotes, one override a line"
        ) from error
    return argument


def _require_one_choice(arguments: Sequence[str]) -> None:
    """Raise UserError where the command line makes two choices of a group: Hydra would take the last one silently.

    What stands in a file (`@FILE`, `--rerun`) may be chosen again on the command line.
    """
    chosen: dict[str, dict[str, None]] = {}
    for text in arguments:
        key, equals, _ = text.partition("=")
        if equals and key and not key.startswith("-") and (conf_dir() / key).is_dir():
            chosen.setdefault(key, {})[text] = None
    twice = [(key, list(texts)) for key, texts in chosen.items() if len(texts) > 1]
    if twice:
        raise UserError(
            *(f"{key} is chosen {len(texts)} times, {' and '.join(texts)}; keep one" for key, texts in twice)
        )


def _with_files(arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        if argument.startswith("@") and len(argument) > 1:
            yield from read_overrides(Path(argument[1:]))
        else:
            yield argument


def _run_folder(reference: str) -> Path:
    if not is_object(reference):
        return Path(reference)
    from nlu.storage.copies import records_of

    return records_of(reference, "--rerun")


def _saved(run: Path) -> list[str]:
    path = run.expanduser() / "overrides"
    if not path.is_file():
        raise UserError(f"--rerun is {run}, but {path} is no file; give the folder of a run")
    return read_overrides(path)


def _merged(saved: list[str], given: list[str], run: str) -> list[str]:
    """Return the saved overrides, without those whose key is given again, before the given ones."""
    again = {_key(text) for text in given}
    added = {_key(text) for text in saved if text.startswith("+")}
    given = [f"+{text}" if _key(text) in added and text[0] not in "+~" else text for text in given]
    kept = [text for text in saved if _key(text) not in again]
    if hidden := [_key(text) for text in kept if HIDDEN in text]:
        raise UserError(
            *(f"{key} held a secret, which {run}/overrides does not tell; give {key}=VALUE again" for key in hidden)
        )
    return [*kept, *given]


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(
            f"{message}; keys are written key=value, without dashes; see --help, and --hydra-help for flags"
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


def _require_sense(given: argparse.Namespace) -> None:
    wanted = [given.run, given.cfg, given.multirun, given.shell_completion, given.info]
    if sum(map(bool, wanted)) > 1:
        raise UserError("only one of --run, --multirun, --cfg, --info and --shell-completion can be done; leave one")
    if given.resolve and not (given.cfg or given.help):
        raise UserError("--resolve says how --cfg and --help show values; add --cfg job")
    if given.config_dir is not None and not Path(given.config_dir).is_dir():
        raise UserError(f"--config-dir is {given.config_dir!r}, which is not found; give it a folder that is there")


def _flags(given: argparse.Namespace) -> Iterator[str]:
    for flag in sorted(FLAGS):
        value = getattr(given, flag.removeprefix("--").replace("-", "_"))
        if value is True:
            yield flag
        elif value:
            yield f"{flag}={value}"
