"""What distinguishes configurations: the keys that a table shows as columns, and the names of curves in a figure."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from nlu.reports.aggregate import TableRow, is_identity, rows_of
from nlu.reports.runs import RunRecord

ABSENT = None
CHOICES = "choices."
MOST_CHARACTERS = 32
"""of a value"""
MOST_OF_KEYS = 80
"""characters of keys and values; with more of them a folder is the better name"""
GENERIC = {"folds.count": "folds", "folds.group_by": "group_by"}
"""keys whose last part says nothing by itself"""
ELLIPSIS = "…"


@dataclass
class KeyColumns:
    """The keys that a table shows, and those that it need not show."""

    shown: dict[str, list[object]] = field(default_factory=dict)
    """by key, the value of each row"""
    implied: list[str] = field(default_factory=list)
    """further keys that differ, each a function of the shown ones"""


def differing_columns(rows: Sequence[TableRow]) -> KeyColumns:
    """Return the keys whose values differ between the rows; those that a command line set come first.

    A group with different choices (`model=textcnn`) is one column with their names. Keys below it, and other keys that
    no command line set, are shown only if the columns so far do not determine them.
    """
    configs = [row.config for row in rows]
    named = [{key: text for key, text in row.runs[0].overrides.items() if is_identity(key)} for row in rows]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differing = [key for key in keys if len({_as_json(config.get(key)) for config in configs}) > 1]
    on_command_lines = list(dict.fromkeys(key for texts in named for key in texts))
    columns = KeyColumns()
    for key in on_command_lines:
        below = [other for other in keys if other.startswith(f"{key}.")]
        if key in differing or any(text[key].startswith("{") for text in named if key in text):
            values = [_value(key, below, config) for config in configs]
        else:
            values = _choices(key, below, rows, named) if set(below) & set(differing) else []
        if len(set(map(_as_json, values))) > 1:
            columns.shown[key] = values
    for group in dict.fromkeys(group for row in rows for group in _recorded(row)):
        below = [other for other in keys if other.startswith(f"{group}.")]
        values = _choices(group, below, rows, named) if set(below) & set(differing) else []
        if len(set(values)) > 1 and not _is_determined(values, columns.shown):
            columns.shown[group] = values
    rest = [key for key in differing if key not in columns.shown]
    # Classes first: most keys that differ between two choices of a group follow from the class.
    for key in sorted(rest, key=lambda key: not key.endswith("_target_")):
        values = [config.get(key, ABSENT) for config in configs]
        if _is_determined(values, columns.shown):
            columns.implied.append(key)
        else:
            columns.shown[key] = values
    return columns


def _recorded(row: TableRow) -> dict[str, str]:
    """Return the choice of each group, as far as the run recorded it."""
    config = row.runs[0].config
    return {key.removeprefix(CHOICES): name for key, name in config.items() if key.startswith(CHOICES)}


def _choices(
    group: str, below: Sequence[str], rows: Sequence[TableRow], named: Sequence[dict[str, str]]
) -> list[object]:
    """Return the name of each row's choice; if a run did not record it, that of an equal choice, else the class."""
    contents = [_as_json([row.config.get(key) for key in below]) for row in rows]
    recorded = [_recorded(row).get(group) or texts.get(group) for row, texts in zip(rows, named, strict=True)]
    names = {content: name for content, name in zip(contents, recorded, strict=True) if name}
    return [
        name or names.get(content) or (row.config.get(f"{group}._target_") or "default").rpartition(".")[2]
        for content, name, row in zip(contents, recorded, rows, strict=True)
    ]


def _value(key: str, below: Sequence[str], config: Mapping[str, object]) -> object:
    """Return the value of a key; of a mapping one text, however the command line wrote it."""
    held = [f"{name.removeprefix(f'{key}.')}: {config[name]}" for name in below if name in config]
    return f"{{{', '.join(held)}}}" if held else config.get(key, ABSENT)


def _is_determined(values: Sequence[object], shown: dict[str, list[object]]) -> bool:
    """Return whether rows that agree in the shown columns agree in these values."""
    seen: dict[str, str] = {}
    for place, value in enumerate(values):
        known = _as_json([column[place] for column in shown.values()])
        if seen.setdefault(known, _as_json(value)) != _as_json(value):
            return False
    return bool(shown)


def _as_json(value: object) -> str:
    # Values of a configuration may be lists, which a set cannot hold.
    return json.dumps(value, sort_keys=True, default=str)


def named_rows_of(runs: Sequence[RunRecord], names: Mapping[Path, str]) -> tuple[list[list[TableRow]], list[str]]:
    """Return what `rows_of` does, but keep apart the runs in each folder that the user named."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        inside = [folder for folder in names if run.folder.is_relative_to(folder)]
        # Named folders may lie within one another; the innermost one names the run.
        name = names[max(inside, key=lambda folder: len(folder.parts))] if inside else ""
        groups.setdefault(name, []).append(run)
    tables: list[list[TableRow]] = []
    remarks: list[str] = []
    for name, own in groups.items():
        found, left_out = rows_of(own)
        for row in (row for table in found for row in table):
            row.name = name
        tables, remarks = [*tables, *found], [*remarks, *left_out]
    return tables, remarks


def labels_of(rows: Sequence[TableRow]) -> list[str]:
    """Return a distinct name for each configuration.

    It is the user's name, else the keys that differ with their values, or the folder if no key differs or too many do.
    If several configurations would have one name, their folders are added.
    """
    labels = [row.name for row in rows]
    for name in dict.fromkeys(labels):
        places = [place for place, row in enumerate(rows) if row.name == name]
        for place, own in zip(places, _labels_without_names([rows[place] for place in places]), strict=True):
            labels[place] = ", ".join(part for part in (name, own) if part) if name and len(places) > 1 else name or own
    return _made_distinct(labels, rows)


def _labels_without_names(rows: Sequence[TableRow]) -> list[str]:
    labels = _keys_and_values(rows)
    if max(map(len, labels)) > MOST_OF_KEYS:
        # Then each row is named by its folder.
        labels = [""] * len(rows)
    folders = [str(row.folder) for row in rows]
    common = _common_folder(folders)
    return [
        label or (folder.removeprefix(common) if common else row.folder.name)
        for label, folder, row in zip(labels, folders, rows, strict=True)
    ]


def _keys_and_values(rows: Sequence[TableRow]) -> list[str]:
    shown = differing_columns(rows).shown
    keys = {key: _short_key(key, list(shown)) for key in shown}
    texts = {key: _short_values(key, values) for key, values in shown.items()}
    return [
        ", ".join(f"{keys[key]}={texts[key][place]}" for key, values in shown.items() if values[place] is not None)
        for place in range(len(rows))
    ]


def _short_key(key: str, others: Sequence[str]) -> str:
    """Return the last part of a key if that identifies it."""
    if key in GENERIC:
        return GENERIC[key]
    if key.endswith("._target_"):
        # matplotlib leaves names that begin with "_" out of legends.
        return key.removesuffix("._target_")
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in others) > 1 else last


def _short_values(key: str, values: Sequence[object]) -> list[str]:
    """Return the values of a key, shortened unless that would make two of them equal."""
    texts = [_short_text(key, value) for value in values]
    if _count(texts) < _count(values):
        texts = [str(value) for value in values]
    paths = [text for text, value in zip(texts, values, strict=True) if isinstance(value, str) and "/" in text]
    if common := _common_folder(paths):
        texts = [text.removeprefix(common) for text in texts]
    # The end of a value, such as the name of a file, tells more than its beginning.
    cut = [text if len(text) <= MOST_CHARACTERS else f"{ELLIPSIS}{text[1 - MOST_CHARACTERS :]}" for text in texts]
    return cut if _count(cut) == _count(texts) else texts


def _short_text(key: str, value: object) -> str:
    if key.endswith("._target_"):
        return str(value).rpartition(".")[2]
    return re.sub(r"e([+-])0*", r"e\1", f"{value:g}").replace("e+", "e") if isinstance(value, float) else str(value)


def _count(values: Sequence[object]) -> int:
    return len({str(value) for value in values})


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folders with which all paths begin, with a slash at the end, without the last part of any path."""
    if len(set(paths)) < 2:
        return ""
    # In sorted order, all paths begin with what the first and the last of them share.
    first, last = min(paths).split("/")[:-1], max(paths).split("/")[:-1]
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return "".join(f"{part}/" for part in first[:alike])


def _made_distinct(labels: Sequence[str], rows: Sequence[TableRow]) -> list[str]:
    """Add the name of the folder, and if need be its path, to labels that several rows have."""
    found = list(labels)
    for place in (lambda row: row.folder.name, lambda row: str(row.runs[0].folder)):
        counts = Counter(found)
        found = [
            f"{label} ({place(row)})" if counts[label] > 1 else label for label, row in zip(found, rows, strict=True)
        ]
    return found
