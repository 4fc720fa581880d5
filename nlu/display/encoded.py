"""Encoded examples on standard output: texts, pieces, ids, segments and targets, token below token."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from nlu.display.console_tables import print_table

WIDTH = 120
"""columns of a line that is not written to a terminal"""
ROWS = {"pieces": "piece", "ids": "id", "segments": "segment", "targets": "target", "names": "name"}
GAP = 2


def print_encoded(name: str, examples: Sequence[Mapping[str, Any]]) -> None:
    """Print the first examples of a set, as `nlu.data.first_rows` describes them."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    for number, example in enumerate(examples, 1):
        print_table("\n".join([f"{name} {number}: {example['place']}", *_lines(example, width), ""]))


def _lines(example: Mapping[str, Any], width: int) -> Iterator[str]:
    head = {role: " ".join(text) if isinstance(text, list) else text for role, text in example["texts"].items()}
    if example["target"] is not None:
        head["target"] = example["target"] + (f" = {example['name']}" if example["name"] is not None else "")
    margin = max(map(len, [*head, *ROWS.values()]))
    for role, text in head.items():
        yield f"  {role:<{margin}}  {' '.join(text.split())}"
    for sequence in example["sequences"]:
        rows = {ROWS[key]: [str(value) for value in values] for key, values in sequence.items() if key in ROWS}
        columns = list(zip(*rows.values(), strict=True))
        for some in _wrapped(columns, width - margin - 2):
            for place, row in enumerate(rows):
                cells = "".join(" " * GAP + _padded(column[place], _width(column)) for column in some)
                yield f"  {row:<{margin}}{cells}"


def _wrapped(columns: Sequence[tuple[str, ...]], width: int) -> Iterator[list[tuple[str, ...]]]:
    """Yield as many columns as fit in a line, but at least one."""
    some: list[tuple[str, ...]] = []
    taken = 0
    for column in columns:
        if some and taken + GAP + _width(column) > width:
            yield some
            some, taken = [], 0
        some.append(column)
        taken += GAP + _width(column)
    if some:
        yield some


def _width(column: Sequence[str]) -> int:
    return max(map(cell_len, column))


def _padded(cell: str, width: int) -> str:
    # Chinese characters take two columns.
    return cell + " " * (width - cell_len(cell))
