"""The best trial as an experiment file that contains everything its command line set."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString

from nlu.config.checks.reading import quoted
from nlu.config.choices import conf_dir
from nlu.config.words import path_text
from nlu.display.tables import metric_text
from nlu.display.trials import Summary, TrialRow, written
from nlu.storage.files import write_text

NOT_KEPT = ("trial", "resume", "dry_run", "mirror", "hydra")
"""keys of the run, not of the experiment"""


def write_best(summary: Summary, path: Path) -> bool:
    """Write the best trial as an experiment, FOLDER/experiment/NAME.yaml; returns whether there is one.

    The first lines contain the command that runs it. A copy, trial_NUMBER.yaml, stays when another trial becomes the
    best. Without a best trial, an existing file is removed.
    """
    trial = summary.best
    if trial is None:
        path.unlink(missing_ok=True)
        return False
    flags, overrides = _arguments(trial)
    is_group, late = _group_test(flags), _later_groups()
    added: list[Any] = []
    overridden: list[dict[str, Any]] = []
    late_choices: list[dict[str, Any]] = []
    body: dict[str, Any] = {}
    for override in overrides:
        key = str(override.key_or_group)
        if key == "experiment":
            # The choices of an experiment come first: the command line overrides them.
            added.insert(0, str(override.value()))
        elif not override.is_delete() and is_group(key) and isinstance(override.value(), (str, QuotedString)):
            group = override.get_key_element().lstrip("+")
            if group in late:
                choices, content = _content(group, _plain(override.value()))
                body, late_choices = _merged(content, body), [*late_choices, *choices]
            elif override.is_add():
                added.append({f"/{group}": _plain(override.value())})
            else:
                overridden.append({f"override /{group}": _plain(override.value())})
        elif not override.is_delete():
            _put(body, key, _plain(override.value()))
    # A choice on the command line takes precedence over one that another choice includes.
    explicit = {group for entry in overridden for group in entry}
    overridden += [entry for entry in late_choices if not explicit & entry.keys()]
    content = yaml.safe_dump({"defaults": [*added, *overridden, "_self_"], **body}, allow_unicode=True, sort_keys=False)
    value = f"{summary.metric} {metric_text(trial.value)}"
    for name in (path.stem, f"trial_{trial.number}"):
        command = best_command(path.parent.parent, summary, name)
        header = f"# @package _global_\n# {command}\n# The best of {summary.counts}: trial {trial.number}, {value}.\n"
        write_text(path.with_stem(name), header + content)
    return True


def best_command(folder: Path, summary: Summary, name: str = "best") -> str:
    """Return the command that runs NAME.yaml, with what the file cannot contain: folders of choices, deleted keys."""
    assert summary.best is not None, "there is a best trial"
    flags, overrides = _arguments(summary.best)
    deleted = [str(override.input_line) for override in overrides if override.is_delete()]
    parts = [f"--config-dir={path_text(folder)}", f"experiment={name}", *deleted]
    # Hydra accepts one --config-dir, so the others become its search path.
    if places := [os.path.abspath(flag.partition("=")[2]) for flag in flags]:
        parts.append(f"hydra.searchpath=[{','.join(f'file://{place}' for place in places)}]")
    return shlex.join(["python", "-m", "nlu.train", *parts])


def _arguments(trial: TrialRow) -> tuple[list[str], list[Override]]:
    """Return the flags and overrides in the folder of a trial; without a folder, its drawn values."""
    file = Path(trial.folder or "") / "overrides"
    if trial.folder and file.is_file():
        texts = shlex.split(file.read_text(encoding="utf-8"))
    else:
        texts = [quoted(f"{name}={written(value)}") for name, value in trial.params.items()]
    flags = [text for text in texts if text.startswith("--config-dir=")]
    parsed = OverridesParser.create().parse_overrides([text for text in texts if not text.startswith("--")])
    return flags, [override for override in parsed if override.key_or_group.split(".")[0] not in NOT_KEPT]


def _group_test(flags: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a key is a config group."""
    places = [conf_dir(), *(Path(flag.partition("=")[2]) for flag in flags)]

    def is_group(key: str) -> bool:
        return any((place / key).is_dir() for place in places)

    return is_group


def _later_groups() -> list[str]:
    """Return the groups that are composed after the experiment, which therefore cannot choose from them."""
    defaults = yaml.safe_load((conf_dir() / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    names = [next(iter(entry)) for entry in defaults if isinstance(entry, dict)]
    return [name for name in names[names.index("experiment") + 1 :] if not name.startswith("override ")]


def _content(group: str, choice: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what a choice of a later group overrides in other groups, and the keys that it sets."""
    text = (conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    choices = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    return choices, content if "@package _global_" in text.partition("\n")[0] else {group: content}


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def _put(body: dict[str, Any], key: str, value: object) -> None:
    *groups, name = key.split(".")
    for group in groups:
        body = body.setdefault(group, {})
    body[name] = value
