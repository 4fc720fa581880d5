"""What distinguishes configurations: the keys that a table shows as columns, and the names of curves in a figure."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nlu.reports.run_table import CONFIG, Configuration, as_json, is_identity, table_of
from nlu.reports.runs import CHOICES

MOST_OF_KEYS = 80
"""characters of keys and values; with more of them a folder is the better name"""
GENERIC = {"folds.count": "folds", "folds.group_by": "group_by"}
"""keys whose last part says nothing by itself"""


@dataclass
class KeyColumns:
    """The keys that a table shows, and those that it need not show."""

    shown: dict[str, list[object]] = field(default_factory=dict)
    """by key, the value of each row; choices of a group by its name"""
    implied: list[str] = field(default_factory=list)
    """further keys that differ, each a function of the shown ones"""


def differing_columns(rows: Sequence[Configuration]) -> KeyColumns:
    """Return the keys whose values differ between the rows: those that a command line set, then choices, then others.

    A key that no command line set is shown only if the columns before do not determine it. Classes are asked first,
    since most keys that differ between two choices of a group follow from the class.
    """
    first = table_of(rows, [row.runs[:1] for row in rows])
    # Counted in the table, so that of hundreds of keys only the few that differ are looked at.
    differing = [
        name.removeprefix(CONFIG)
        for name in first.column_names
        if name.startswith(CONFIG) and len(first[name].unique()) > 1
    ]
    typed = list(dict.fromkeys(key for row in rows for key in row.runs[0].overrides))
    values: dict[str, list[object]] = {}
    for key in differing:
        group = key.removeprefix(CHOICES)
        # A choice without a key that differs, such as the name of an experiment, tells nothing.
        if key.startswith(CHOICES) and any(other.startswith(f"{group}.") for other in differing):
            values[group] = [row.runs[0].config.get(key) for row in rows]
        elif is_identity(key):
            held = [row.config.get(key) for row in rows]
            values |= {key: held} if len(set(map(as_json, held))) > 1 else {}

    def order(key: str) -> tuple[int, int]:
        if key in typed:
            return 0, typed.index(key)
        return (1 if f"{CHOICES}{key}" in differing else 2 if key.endswith("._target_") else 3), 0

    columns = KeyColumns()
    for key in sorted(values, key=order):
        if key in typed or not _is_determined(values[key], columns.shown):
            columns.shown[key] = values[key]
        else:
            columns.implied.append(key)
    return columns


def _is_determined(values: Sequence[object], shown: dict[str, list[object]]) -> bool:
    """Return whether rows that agree in the shown columns agree in these values."""
    seen: dict[str, str] = {}
    for place, value in enumerate(values):
        known = as_json([column[place] for column in shown.values()])
        if seen.setdefault(known, as_json(value)) != as_json(value):
            return False
    return bool(shown)


def labels_of(rows: Sequence[Configuration]) -> list[str]:
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


def _labels_without_names(rows: Sequence[Configuration]) -> list[str]:
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


def _keys_and_values(rows: Sequence[Configuration]) -> list[str]:
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
    """Return the values of a key, paths without the folders that all of them share."""
    texts = [_short_text(key, value) for value in values]
    if len(set(texts)) < len(set(map(str, values))):
        texts = [str(value) for value in values]
    common = _common_folder([text for text, value in zip(texts, values, strict=True) if isinstance(value, str)])
    return [text.removeprefix(common) for text in texts]


def _short_text(key: str, value: object) -> str:
    if key.endswith("._target_"):
        return str(value).rpartition(".")[2]
    return re.sub(r"e([+-])0*", r"e\1", f"{value:g}").replace("e+", "e") if isinstance(value, float) else str(value)


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folders with which all paths begin, with a slash at the end, without the last part of any path."""
    if len(set(paths)) < 2 or not all("/" in path for path in paths):
        return ""
    common = os.path.commonprefix([f"{path.rpartition('/')[0]}/" for path in paths])
    return common[: common.rfind("/") + 1]


def _made_distinct(labels: Sequence[str], rows: Sequence[Configuration]) -> list[str]:
    """Add the name of the folder, and if need be its path, to labels that several rows have."""
    found = list(labels)
    for place in (lambda row: row.folder.name, lambda row: str(row.runs[0].folder)):
        counts = Counter(found)
        found = [
            f"{label} ({place(row)})" if counts[label] > 1 else label for label, row in zip(found, rows, strict=True)
        ]
    return found
