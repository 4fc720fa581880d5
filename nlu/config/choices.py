"""The shipped configuration files, and what the choices of a group are called there."""

from functools import cache
from pathlib import Path

import yaml

import nlu
from nlu.config.targets import TARGET


def conf_dir() -> Path:
    """Return the directory of the configuration files: inside the package when installed, beside it in a checkout."""
    package = Path(nlu.__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@cache
def targets_of(group: str) -> dict[str, str]:
    """Return the dotted name of the class behind each shipped choice of a group, in the order of their names."""
    files = sorted((conf_dir() / group).glob("*.yaml"))
    named = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")).get(TARGET) for path in files}
    return {name: target for name, target in named.items() if target is not None}


def choice_of(group: str, target: str) -> str:
    """Return what a class is called on the command line, or its dotted name where it is no shipped choice."""
    return next((name for name, each in targets_of(group).items() if each == target), target)
