"""Which configuration keys a table of runs needs to tell its rows apart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nlu.reports.aggregate import Row, is_identity

ABSENT = None
CHOICES = "choices."


@dataclass
class Columns:
    """The columns of a table: each with a value for each row; the rest of what differs follows from them."""

    shown: dict[str, list[object]] = field(default_factory=dict)
    implied: list[str] = field(default_factory=list)
    """keys that differ too, each a function of the shown ones"""


def differing_columns(rows: Sequence[Row]) -> Columns:
    """Return the keys whose values differ between the rows, the ones that command lines name first.

    A group of which another choice was made (`model=textcnn`) is one column with the names; of the keys below it, and
    of any other group or key that no command line names, only those are shown that the columns before do not determine
    already.
    """
    configs = [row.config for row in rows]
    named = [{key: text for key, text in row.runs[0].overrides.items() if is_identity(key)} for row in rows]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differing = [key for key in keys if len({_text(config.get(key)) for config in configs}) > 1]
    on_command_lines = list(dict.fromkeys(key for texts in named for key in texts))
    columns = Columns()
    for key in on_command_lines:
        below = [other for other in keys if other.startswith(f"{key}.")]
        if key in differing or any(text[key].startswith("{") for text in named if key in text):
            values = [_value(key, below, config) for config in configs]
        else:
            values = _choices(key, below, rows, named) if set(below) & set(differing) else []
        if len(set(map(_text, values))) > 1:
            columns.shown[key] = values
    for group in dict.fromkeys(group for row in rows for group in _recorded(row)):
        below = [other for other in keys if other.startswith(f"{group}.")]
        values = _choices(group, below, rows, named) if set(below) & set(differing) else []
        if len(set(values)) > 1 and not _is_determined(values, columns.shown):
            columns.shown[group] = values
    rest = [key for key in differing if key not in columns.shown]
    for key in sorted(rest, key=lambda key: not key.endswith("_target_")):
        values = [config.get(key, ABSENT) for config in configs]
        if _is_determined(values, columns.shown):
            columns.implied.append(key)
        else:
            columns.shown[key] = values
    return columns


def _recorded(row: Row) -> dict[str, str]:
    """The choice of each group, which older runs did not write down."""
    config = row.runs[0].config
    return {key.removeprefix(CHOICES): name for key, name in config.items() if key.startswith(CHOICES)}


def _choices(group: str, below: Sequence[str], rows: Sequence[Row], named: Sequence[dict[str, str]]) -> list[object]:
    """The name of each row's choice; of an older run that does not tell it, that of an equal one, else the class."""
    contents = [_text([row.config.get(key) for key in below]) for row in rows]
    told = [_recorded(row).get(group) or texts.get(group) for row, texts in zip(rows, named, strict=True)]
    names = {content: name for content, name in zip(contents, told, strict=True) if name}
    return [
        name or names.get(content) or (row.config.get(f"{group}._target_") or "default").rpartition(".")[2]
        for content, name, row in zip(contents, told, rows, strict=True)
    ]


def _value(key: str, below: Sequence[str], config: dict[str, Any]) -> object:
    """The value of a key or, of a mapping, the same text however it was written on the command line."""
    held = [f"{name.removeprefix(f'{key}.')}: {config[name]}" for name in below if name in config]
    return f"{{{', '.join(held)}}}" if held else config.get(key, ABSENT)


def _is_determined(values: Sequence[object], shown: dict[str, list[object]]) -> bool:
    seen: dict[str, str] = {}
    for place, value in enumerate(values):
        known = _text([column[place] for column in shown.values()])
        if seen.setdefault(known, _text(value)) != _text(value):
            return False
    return bool(shown)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
