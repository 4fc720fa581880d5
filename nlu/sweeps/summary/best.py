"""The best trial as an experiment file: everything its command line said, in a form that can be kept."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString

from nlu.config.app import conf_dir
from nlu.config.tables import metric_text, path_text
from nlu.storage.files import write_text
from nlu.sweeps.summary.trials import Summary, TrialRow, written

NOT_KEPT = ("trial", "resume", "dry_run", "hydra")
"""What belongs to the run, not to the experiment."""


def write_best(summary: Summary, path: Path, shared: Sequence[str] = ()) -> bool:
    """Write the best trial as an experiment; returns whether there is one. Without one an older file goes."""
    trial = summary.best
    if trial is None:
        path.unlink(missing_ok=True)
        return False
    flags, overrides = _spoken(trial, shared)
    chosen = _choices(flags)
    defaults: list[Any] = []
    body: dict[str, Any] = {}
    for override in overrides:
        key = str(override.key_or_group)
        if key == "experiment":
            # Its own choices stand before those of the command line, which overrode them.
            defaults.insert(0, str(override.value()))
        elif not override.is_delete() and chosen(key) and isinstance(override.value(), (str, QuotedString)):
            defaults.append({f"override /{override.get_key_element().lstrip('+')}": _plain(override.value())})
        elif not override.is_delete():
            _put(body, key, _plain(override.value()))
    content = yaml.safe_dump({"defaults": [*defaults, "_self_"], **body}, allow_unicode=True, sort_keys=False)
    value = f"{summary.metric} {metric_text(trial.value)}"
    header = (
        "# @package _global_\n# python -m nlu.train experiment=best\n"
        f"# The best of {summary.counts}: trial {trial.number}, {value}.\n"
    )
    write_text(path, header + content)
    return True


def best_command(program: str, folder: Path, summary: Summary, shared: Sequence[str] = ()) -> str:
    """Return the command that runs best.yaml, with what a file cannot say: folders of choices, deleted keys."""
    assert summary.best is not None, "there is a best trial"
    flags, overrides = _spoken(summary.best, shared)
    deleted = [str(override.input_line) for override in overrides if override.is_delete()]
    parts = [f"--config-dir={path_text(folder)}", "experiment=best", *deleted]
    # Hydra takes one --config-dir; further places are searched too.
    if places := [os.path.abspath(flag.partition("=")[2]) for flag in flags]:
        parts.append(f"hydra.searchpath=[{','.join(f'file://{place}' for place in places)}]")
    return " ".join([program, *map(shlex.quote, parts)])


def _spoken(trial: TrialRow, shared: Sequence[str]) -> tuple[list[str], list[Override]]:
    """The flags and overrides of a trial: of its run folder, or else the shared ones and its parameters."""
    file = Path(trial.folder or "") / "overrides"
    if trial.folder and file.is_file():
        texts = shlex.split(file.read_text(encoding="utf-8"))
    else:
        texts = [*shared, *(f"{name}={written(value)}" for name, value in trial.params.items())]
    flags = [text for text in texts if text.startswith("--config-dir=")]
    parsed = OverridesParser.create().parse_overrides([text for text in texts if not text.startswith("--")])
    return flags, [override for override in parsed if override.key_or_group.split(".")[0] not in NOT_KEPT]


def _choices(flags: Sequence[str]) -> Any:
    """A function that tells whether a key is a group to choose from."""
    places = [conf_dir(), *(Path(flag.partition("=")[2]) for flag in flags)]

    def is_group(key: str) -> bool:
        return any((place / key).is_dir() for place in places)

    return is_group


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def _put(body: dict[str, Any], key: str, value: Any) -> None:
    *groups, name = key.split(".")
    for group in groups:
        body = body.setdefault(group, {})
    body[name] = value
