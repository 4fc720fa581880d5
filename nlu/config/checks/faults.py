"""Why a configuration cannot be composed."""

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.errors import MissingConfigException

from nlu.config.checks.reading import said_of
from nlu.config.foreign import choice_elsewhere
from nlu.config.nearest import hint
from nlu.config.resolving import first_line


def choice_problem(group: str, choice: str, options_of: Callable[[str], list[str]]) -> str | None:
    """Return what is wrong with the choice of a group; None if it exists. `options_of` lists the choices of a group."""
    if choice in ("", "null"):
        everything = ", ".join(sorted(options_of(group)))
        return f"{group}={choice}: the choice of a group cannot be empty; leave it out, or name one; all: {everything}"
    path = PurePosixPath(group) / choice
    options = options_of(str(path.parent))
    if path.name in options:
        return None
    close = choice_elsewhere(group, choice) or options_hint(choice, options)
    everything = "" if "all: " in close else f"; all: {', '.join(sorted(options))}"
    return f"{group}={choice}: unknown choice; {close}{everything}"


def options_hint(value: str, options: list[str]) -> str:
    close = hint(value, options)
    everything = f"all: {', '.join(sorted(options))}"
    return f"{close}; {everything}" if close.startswith("nearest") else everything


def fault_of(error: Exception, config_name: str, loader: ConfigLoader, overrides: Sequence[str]) -> str:
    """Return why a configuration cannot be composed."""
    if isinstance(error, MissingConfigException) and error.options:
        name = PurePosixPath(error.missing_cfg_file or "").name
        return f"{first_line(error)}; {options_hint(name, list(error.options))}"
    if isinstance(error, yaml.YAMLError):
        return f"a configuration file is not valid YAML: {' '.join(str(error).split())}; correct it"
    reason = error if str(error) or error.__cause__ is None else error.__cause__
    key = getattr(reason, "full_key", None)
    return f"{key}: {first_line(reason)}" if key else said_of(reason)
