"""What the curves of a figure are called: the keys that differ and their values, or names that the user gave."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from nlu.reports.aggregate import Row, rows_of
from nlu.reports.columns import differing_columns
from nlu.reports.runs import Run

MOST_CHARACTERS = 32
"""of a value"""
MOST_OF_KEYS = 80
"""characters of keys and values beyond which folders say more"""
GENERIC = {"folds.count": "folds", "folds.group_by": "group_by"}
"""keys whose last part says nothing by itself"""
ELLIPSIS = "…"


def named_rows_of(runs: Sequence[Run], names: Mapping[Path, str]) -> tuple[list[list[Row]], list[str]]:
    """Return what `rows_of` does, of the runs in each folder that the user named apart from all others."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        inside = [folder for folder in names if run.folder.is_relative_to(folder)]
        name = names[max(inside, key=lambda folder: len(folder.parts))] if inside else ""
        groups.setdefault(name, []).append(run)
    tables: list[list[Row]] = []
    remarks: list[str] = []
    for name, own in groups.items():
        found, left_out = rows_of(own)
        for row in (row for table in found for row in table):
            row.name = name
        tables, remarks = [*tables, *found], [*remarks, *left_out]
    return tables, remarks


def labels_of(rows: Sequence[Row]) -> list[str]:
    """Return a name for each configuration, no two alike.

    It is the user's name where there is one, else the keys that differ with their values, or the folder where they are
    none or too many. Where several would be called the same, their folders are added.
    """
    labels = [row.name for row in rows]
    for name in dict.fromkeys(labels):
        places = [place for place, row in enumerate(rows) if row.name == name]
        for place, own in zip(places, _own_labels([rows[place] for place in places]), strict=True):
            labels[place] = ", ".join(part for part in (name, own) if part) if name and len(places) > 1 else name or own
    return _told_apart(labels, rows)


def _own_labels(rows: Sequence[Row]) -> list[str]:
    labels = _keys_and_values(rows)
    if max(map(len, labels)) > MOST_OF_KEYS:
        labels = [""] * len(rows)
    folders = [str(_folder(row)) for row in rows]
    common = _common_folder(folders)
    return [
        label or (folder.removeprefix(common) if common else _folder(row).name)
        for label, folder, row in zip(labels, folders, rows, strict=True)
    ]


def _folder(row: Row) -> Path:
    """The folder of a run, or the one in which its seeds and folds lie."""
    return row.runs[0].folder if len(row.runs) == 1 else row.runs[0].folder.parent


def _keys_and_values(rows: Sequence[Row]) -> list[str]:
    shown = differing_columns(rows).shown
    keys = {key: _short_key(key, list(shown)) for key in shown}
    texts = {key: _short_values(key, values) for key, values in shown.items()}
    return [
        ", ".join(
            f"{keys[key]}={texts[key][place]}" for key, values in shown.items() if values[place] is not None
        )
        for place in range(len(rows))
    ]  # fmt: skip


def _short_key(key: str, others: Sequence[str]) -> str:
    """The last part of a key, where it tells which key is meant. A legend leaves out what begins with "_"."""
    if key in GENERIC:
        return GENERIC[key]
    if key.endswith("._target_"):
        return key.removesuffix("._target_")
    last = key.rpartition(".")[2]
    return key if sum(other.rpartition(".")[2] == last for other in others) > 1 else last


def _short_values(key: str, values: Sequence[object]) -> list[str]:
    """The values of a key, cut where they are alike, and never so that two of them become one."""
    texts = [_text(key, value) for value in values]
    if _count(texts) < _count(values):
        texts = [str(value) for value in values]
    paths = [text for text, value in zip(texts, values, strict=True) if isinstance(value, str) and "/" in text]
    if common := _common_folder(paths):
        texts = [text.removeprefix(common) for text in texts]
    cut = [
        text if len(text) <= MOST_CHARACTERS else f"{ELLIPSIS}{text[1 - MOST_CHARACTERS:]}" for text in texts
    ]  # fmt: skip
    return cut if _count(cut) == _count(texts) else texts


def _text(key: str, value: object) -> str:
    if key.endswith("._target_"):
        return str(value).rpartition(".")[2]
    return re.sub(r"e([+-])0*", r"e\1", f"{value:g}").replace("e+", "e") if isinstance(value, float) else str(value)


def _count(values: Sequence[object]) -> int:
    return len({str(value) for value in values})


def _common_folder(paths: Sequence[str]) -> str:
    """The folders with which all paths begin, with a slash at the end; a file's own name is none of them."""
    if len(set(paths)) < 2:
        return ""
    first, last = min(paths).split("/")[:-1], max(paths).split("/")[:-1]
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return "".join(f"{part}/" for part in first[:alike])


def _told_apart(labels: Sequence[str], rows: Sequence[Row]) -> list[str]:
    found = list(labels)
    for told in (lambda row: _folder(row).name, lambda row: str(row.runs[0].folder)):
        counts = Counter(found)
        found = [
            f"{label} ({told(row)})" if counts[label] > 1 else label for label, row in zip(found, rows, strict=True)
        ]  # fmt: skip
    return found
