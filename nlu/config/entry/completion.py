"""Completion in a shell, by Hydra: nlu-train -sc install=bash.

Hydra's functions for a shell ask `COMMAND -sc query=SHELL` at each Tab. They know commands that pip installs, and
`python FILE`, but not `python -m MODULE`: so what is completed is `nlu-train`, the same as `python -m nlu.train`.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import nlu
from nlu.config.entry.flags import CommandLine, read_command_line
from nlu.config.errors import UserError

_SHELLS = ("bash", "fish", "zsh")
_REQUESTS = [f"{verb}={shell}" for verb in ("install", "uninstall", "query") for shell in _SHELLS]


def is_query(line: CommandLine) -> bool:
    """Return whether a shell asks what could stand at the cursor. Raises UserError for a request that Hydra has not."""
    if len(line.overrides) != 1 or line.overrides[0] not in _REQUESTS:
        given = " ".join(line.overrides) or "without a word"
        raise UserError(
            f"--shell-completion is {given}, but it takes one of {', '.join(_REQUESTS[:-3])}; write one of them"
        )
    return line.overrides[0].startswith("query=")


def installed_command(program: str, config_name: str) -> str:
    """Return the name under which pip installs a command, for `program`, which may be the file of its module.

    Raises UserError where the shell would not find the command, as it then completes nothing and does not say why.
    """
    if Path(program).resolve().parent != Path(nlu.__file__).resolve().parent:
        return program
    name = f"nlu-{config_name}"
    if not (Path(sys.executable).parent / name).exists() and shutil.which(name) is None:
        raise UserError(
            f"shells complete {name}, which is python -m nlu.{config_name}, but it is not installed; "
            "install it by make train or pip install --editable ."
        )
    return name


def asked(line: CommandLine, environment: Mapping[str, str] = os.environ) -> tuple[CommandLine, str] | None:
    """Return the query, and what is typed as Hydra can read it; None where there is nothing to offer.

    Hydra splits what is typed at spaces, whatever their quotes, and knows no flag or short form of ours. It takes
    folders of configuration from the query itself, not from what is typed.
    """
    typed = environment.get("COMP_LINE", "")
    try:
        _, *words = shlex.split(typed)
    except ValueError:
        # Nothing, or within quotes.
        return None
    last = "" if not words or typed[-1].isspace() else words.pop()
    if last.startswith("-") or " " in last:
        return None
    try:
        before = read_command_line(words)
    except UserError:
        # Such as a flag that waits for its value.
        return None
    # A value with spaces in it decides nothing of what can follow.
    known = [override for override in before.overrides if " " not in override]
    multirun = ["--multirun"] if before.is_multirun else []
    sources = [flag for flag in before.flags if flag.startswith("--config-")]
    return replace(line, flags=[*line.flags, *sources]), " ".join(["nlu", *multirun, *known, last])
