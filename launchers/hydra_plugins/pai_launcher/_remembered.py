"""Settings that a job on PAI needs and the command lacks: a terminal asks for them once, and the project keeps them.

PROJECT/.nlu/pai.yaml, which git ignores, holds values by backend, and never a secret. Values of the command line go
first.
"""

import contextlib
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from nlu.config.errors import UserError
from nlu.launching.submissions import PROJECT, project_folder, project_state
from nlu.storage.files import write_text

from ._settings import MEANINGS, PREFIX, PaiSettings, missing, setting_problems

FILE = "pai.yaml"


def completed(settings: PaiSettings, project: Path | None = None) -> PaiSettings:
    """Return complete settings. Raises UserError with everything that is wrong or missing."""
    file = (project or project_folder()) / PROJECT / FILE
    settings = _with_remembered(settings, file)
    if names := missing(settings):
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            problems = [f"{PREFIX}.{name} is not set: {MEANINGS[name]}" + _other_way(name) for name in names]
            raise UserError(
                *problems,
                *setting_problems(settings),
                summary=f"hydra/launcher=pai needs {'a key' if len(names) == 1 else f'{len(names)} keys'} more",
                remedy="on a terminal they are asked for, and remembered for this project",
            )
        settings = _asked(settings, names)
        _remember(settings, names, file)
    if problems := list(setting_problems(settings)):
        raise UserError(*problems)
    return settings


def _other_way(name: str) -> str:
    return f" (or set {PREFIX}.resource_quota)" if name == "instance_type" else ""


def _with_remembered(settings: PaiSettings, file: Path) -> PaiSettings:
    known = _read(file).get(settings.backend, {})
    absent = {item.name for item in fields(PaiSettings) if getattr(settings, item.name) is None}
    if settings.instance_type or settings.resource_quota:
        # A job takes one of the two. A remembered value of the other would contradict what was given.
        absent -= {"instance_type", "resource_quota"}
    return replace(settings, **{name: value for name, value in known.items() if name in absent & MEANINGS.keys()})


def _read(file: Path) -> dict[str, dict[str, Any]]:
    if not file.is_file():
        return {}
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read ({str(error).splitlines()[0]}); correct it, or delete it") from None
    if not isinstance(found, dict) or not all(isinstance(values, dict) for values in found.values()):
        raise UserError(
            f"{file} must hold keys by backend, as in 'dlc: {{region: cn-hangzhou}}'; correct it, or delete it"
        )
    return found


def _asked(settings: PaiSettings, names: list[str]) -> PaiSettings:
    """Ask for each key until its answer is valid."""
    for name in names:
        while True:
            print(f"{name}: {MEANINGS[name]}", file=sys.stderr)
            answer = input("> ").strip()
            # An empty answer chooses the other way to get a machine.
            if not answer and name == "instance_type":
                name = "resource_quota"
                continue
            given: dict[str, Any] = {name: answer or None}
            tried = replace(settings, **given)
            problems = [text for text in setting_problems(tried) if text.startswith(f"{PREFIX}.{name} ")]
            for problem in problems:
                print(f"nlu: {problem}", file=sys.stderr)
            # The answer must be valid by itself; what it contradicts is reported with all other problems later.
            if answer and not problems:
                settings = tried
                break
    return settings


def _remember(settings: PaiSettings, names: list[str], file: Path) -> None:
    found = _read(file)
    own = found.setdefault(settings.backend, {})
    for name in [*names, "resource_quota"]:
        if name in MEANINGS and (value := getattr(settings, name)):
            own[name] = value
    # In a project that is read-only, the questions are asked again next time.
    with contextlib.suppress(OSError):
        project_state(file.parent.parent)
        write_text(file, yaml.safe_dump(found, allow_unicode=True, sort_keys=True))
        print(f"nlu: remembered in {file}", file=sys.stderr)
