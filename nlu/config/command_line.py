"""The command line before Hydra reads it.

Its flags, `--rerun RUN` and short forms are written out. Overrides are read one by one: what Hydra's grammar takes only
in quotes is quoted, and what it cannot read is explained.

Hydra's flags are those that its manual names for 1.4; a test compares them with what `--hydra-help` prints.

Completion in a shell is Hydra's: after `nlu-train -sc install=bash` the shell asks `nlu-train -sc query=bash` at each
Tab. Hydra completes installed commands and `python FILE`, but not `python -m MODULE`. So users complete `nlu-train`,
which is the same as `python -m nlu.train`.
"""

import argparse
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from nlu.config.choices import conf_dir
from nlu.config.errors import UserError
from nlu.config.foreign import key_elsewhere
from nlu.config.redaction import HIDDEN
from nlu.config.resolving import first_line

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_PIECES_INSIDE = re.compile(rf"{_QUOTED}|[^'\"{{}}\[\](),:]+|.", re.DOTALL)
"""Pieces of a list, mapping or function: quoted texts, words, and marks between them."""
_PIECES = re.compile(rf"{_QUOTED}|[^'\",]+|.", re.DOTALL)
"""Pieces of plain values, of which a sweep has several."""
_ADDRESSES = re.compile(rf"{_QUOTED}|(?P<address>[A-Za-z][\w+.-]*://[^\s'\"{{}}\[\](),\\]*)")
_PRIOR = re.compile(
    rf"tag\((?P<rest>.*),\s*prior\s*=\s*(?:(?P<quoted>{_QUOTED})|(?P<plain>[^,()'\"\s]+))\s*\)\s*$", re.DOTALL
)
PRIOR = "prior="
"""begins the tag of a sweep that holds its prior"""
USER_MISTAKES = (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError)
"""What Hydra raises before a task starts for a command line or configuration file that it cannot use."""
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


def quoted(argument: str) -> str:
    """Return an override with quotes around what Hydra reads only in quotes.

    These are words with letters beyond ASCII (`data.train=数据.csv`), and addresses with one of =#&~!; in them
    (`output=odps://PROJECT/tables/NAME/pt=1`). Quoted text, values with a backslash or an interpolation, and keys of
    mappings, which Hydra reads in ASCII only, stay as they are. A value of only a double quote, as a shell leaves it of
    `data.quote='"'`, or of only commas and blanks is a text. The prior of a sweep, `tag(interval(0,1), prior=0.5)`,
    becomes a tag, since Hydra's function `tag` knows no such argument.
    """
    key, equals, value = argument.partition("=")
    if "${" in value:
        return argument
    if value == '"':
        return f"{key}='\"'"
    if value and not value.strip(", "):
        # A separator, as a shell leaves it of `data.label_separator=', '`.
        return f'{key}="{value}"'
    value = _PRIOR.sub(_as_tag, value)
    value = _ADDRESSES.sub(
        lambda match: f'"{match[0]}"' if set("=#&~!;").intersection(match["address"] or "") else match[0], value
    )
    if value.isascii():
        return f"{key}{equals}{value}"
    pieces = (_PIECES_INSIDE if re.search(r"[\[{(]", value) else _PIECES).findall(value)
    # A piece before a colon is a key of a mapping.
    following = [*pieces[1:], ""]
    return f"{key}=" + "".join(
        _in_quotes(piece) if after != ":" else piece for piece, after in zip(pieces, following, strict=True)
    )


def _as_tag(match: re.Match[str]) -> str:
    prior = match["plain"] or match["quoted"][1:-1]
    return f"tag('{PRIOR}{prior}',{match['rest']})"


def _in_quotes(piece: str) -> str:
    word = piece.strip()
    if word.isascii() or word[0] in "'\"" or "\\" in word:
        return piece
    return piece.replace(word, f'"{word}"')


def read_override(override: str) -> Override:
    """Return an override as Hydra reads it. Raises UserError with Hydra's message and what to write instead."""
    key, equals, value = override.partition("=")
    if not override.strip():
        raise UserError("an argument is empty; leave it out")
    if not equals and not override.startswith("~"):
        if os.path.isfile(os.path.expanduser(override)):
            raise UserError(
                f"{override} is a file, but its key is missing; write input={override} for rows to predict, "
                f"data.test={override} for rows to score, or data.train={override} for rows to train on"
            )
        if override.startswith(("/", "./", "../", "~/")) or "://" in override or os.path.isdir(override):
            raise UserError(f"{override}: the key is missing; write KEY={override}, as run={override} for a run")
        # The name of a group may have a slash too.
        run = f", or run={override} for a run" if "/" in override else ""
        raise UserError(f"{override}: the value is missing; write {override}=VALUE{run}")
    is_searchable = GlobalHydra.instance().is_initialized()
    try:
        # glob(*) asks the loader for the choices of a group. Only parse_overrides passes it on.
        loader = GlobalHydra.instance().config_loader() if is_searchable else None
        return OverridesParser.create(loader).parse_overrides([override])[0]
    except HydraException as error:
        raise UserError(grammar_problem(override, error)) from error


def grammar_problem(override: str, error: Exception) -> str:
    """Return what Hydra's grammar refuses in an override, and what to write instead."""
    key, _, value = override.partition("=")
    try:
        # The error of the whole command line repeats all overrides; that of this one is short.
        OverridesParser.create().parse_override(override)
    except HydraException as of_this_one:
        error = of_this_one
    function = value.partition("(")[0]
    if value.endswith(")") and (meant := key_elsewhere(f"{function}()")) is not None:
        return f"{override}: unknown function {function}; {meant}"
    # Hydra's parser ends with the names of all symbols that it expected.
    said = said_of(error).partition(" expecting ")[0]
    if function == "choice" and "NoneType" in said:
        # Hydra's function takes no null, its list of values does.
        return f"{override}: choice takes no null; write the values without it, as in '{key}={value[7:].rstrip(')')}'"
    if not _is_closed(value):
        remedy = "close its brackets, and quote the whole for the shell"
    elif value.startswith(("{", "[")):
        remedy = (
            "quote the whole for the shell, and inside it words with special characters in other quotes, but no keys: "
            f"'{key}={{head.*: \"a=b\"}}'"
        )
    elif value.endswith(")"):
        remedy = f"correct it, as in '{key}=interval(0.1,0.5)', or quote a text twice: {_quoted_twice(key, value)}"
    else:
        remedy = f"quote the value for the shell and for Hydra: {_quoted_twice(key, value)}"
    return f"{override} cannot be read: {said}; {remedy}"


def rejoined(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Join overrides that a shell split at spaces, and return one problem for each of them."""
    whole: list[str] = []
    torn: dict[int, str] = {}
    for override in overrides:
        # Only after an open bracket: any other argument without = is a separate mistake.
        if whole and not _is_closed(whole[-1]) and "=" not in override:
            torn[len(whole) - 1] = whole[-1] = f"{whole[-1]} {override}"
        else:
            whole.append(override)
    problems = [
        f"{text} came in pieces, since shells split words at spaces; quote it: '{text}'" for text in torn.values()
    ]
    return whole, problems


def _quoted_twice(key: str, value: str) -> str:
    """Return an argument for the shell with a value that Hydra takes as a text, whatever quotes it contains."""
    # A value that is quoted already in part, such as """, means its content.
    text = value[1:-1] if len(value) > 2 and value[0] == value[-1] == '"' else value
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    argument = f'{key}="{escaped}"'
    return f"'{argument}'" if "'" not in argument else shlex.quote(argument)


def _is_closed(text: str) -> bool:
    return all(text.count(opening) <= text.count(closing) for opening, closing in ("{}", "[]", "()"))


def first_values(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep's first job, without intervals, from which only a search can draw."""
    loader = GlobalHydra.instance().config_loader()
    first = []
    for override in OverridesParser.create(loader).parse_overrides(list(overrides)):
        if not override.is_sweep_override():
            first.append(str(override.input_line))
        elif override.is_discrete_sweep():
            first += overrides_of_sweep(override)[:1]
    return first


def overrides_of_sweep(override: Override) -> list[str]:
    """Return one override for each value of an override that has several."""
    key = override.get_key_element()
    return [quoted(f"{key}={value}") for value in override.sweep_string_iterator()]


def sweep_problem(override: str, key: str) -> str:
    """Return why an override of several values needs --multirun."""
    value = override.partition("=")[2]
    return (
        f"{override}: several values need --multirun; for a list write '{key}=[{value}]', "
        f"for one text quote it for Hydra too: '{key}=\"{value}\"'"
    )


def interval_problem(override: str) -> str:
    """Return why a grid cannot use an interval."""
    return (
        f"{override}: a grid cannot draw from an interval; for a search set hydra/sweeper=hyperband, for a grid list "
        f"the values: {override.partition('=')[0]}=VALUE,VALUE"
    )


def said_of(error: BaseException) -> str:
    """Return the message of Hydra's error and of its cause, on one line."""
    said = " ".join(str(error).split()).rstrip(".")
    reason = first_line(error.__cause__) if isinstance(error.__cause__, OmegaConfBaseException) else ""
    return said if not reason or reason.lower() in said.lower() else f"{said}: {reason}"


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
