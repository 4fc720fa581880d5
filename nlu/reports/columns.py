"""Which configuration keys a table of runs needs to tell its rows apart."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nlu.reports.aggregate import Row, is_identity

ABSENT = None


@dataclass
class Columns:
    """The columns of a table: each with a value for each row; the rest of what differs follows from them."""

    shown: dict[str, list[Any]] = field(default_factory=dict)
    implied: list[str] = field(default_factory=list)
    """keys that differ too, each a function of the shown ones"""


def differing_columns(rows: Sequence[Row]) -> Columns:
    """Return the keys whose values differ between the rows, the ones that command lines name first.

    A group that was chosen by name (`model=textcnn`) is one column with the names; of the keys below it, and of any
    other key that no command line names, only those are shown that the columns before do not determine already.
    """
    configs = [row.config for row in rows]
    named = [{key: text for key, text in row.runs[0].overrides.items() if is_identity(key)} for row in rows]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differing = [key for key in keys if len({_text(config.get(key)) for config in configs}) > 1]
    on_command_lines = list(dict.fromkeys(key for texts in named for key in texts))
    columns = Columns()
    for key in on_command_lines:
        if key in differing:
            columns.shown[key] = [config.get(key, ABSENT) for config in configs]
        elif any(other.startswith(f"{key}.") for other in differing):
            below = [other for other in keys if other.startswith(f"{key}.")]
            choices = _choices(key, below, configs, named)
            if len(set(choices)) > 1:
                columns.shown[key] = choices
    rest = [key for key in differing if key not in columns.shown]
    for key in sorted(rest, key=lambda key: not key.endswith("_target_")):
        values = [config.get(key, ABSENT) for config in configs]
        if _is_determined(values, columns.shown):
            columns.implied.append(key)
        else:
            columns.shown[key] = values
    return columns


def _choices(
    group: str, below: Sequence[str], configs: Sequence[dict[str, Any]], named: Sequence[dict[str, str]]
) -> list[Any]:
    """The name that each row's command line gave; where it gave none, that of an equal choice, else the class."""
    contents = [_text([config.get(key) for key in below]) for config in configs]
    names = {content: texts[group] for content, texts in zip(contents, named, strict=True) if group in texts}
    return [
        texts.get(group) or names.get(content) or (config.get(f"{group}._target_") or "default").rpartition(".")[2]
        for content, texts, config in zip(contents, named, configs, strict=True)
    ]


def _is_determined(values: Sequence[Any], shown: dict[str, list[Any]]) -> bool:
    seen: dict[str, str] = {}
    for place, value in enumerate(values):
        known = _text([column[place] for column in shown.values()])
        if seen.setdefault(known, _text(value)) != _text(value):
            return False
    return bool(shown)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
