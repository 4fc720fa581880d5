"""The scores of an evaluation as tables and figures."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nlu.config.words import counted
from nlu.display.canvas import new_figure, save_drawn
from nlu.display.tables import count_text, metric_text, print_table, table_of

MOST_CONFUSIONS = 5
MOST_WRITTEN_CELLS = 20
"""classes up to which each cell of a confusion matrix has its number in it"""


class Found(Protocol):
    """What is shown of a set; `nlu.inference.findings.Findings` has it."""

    rows: int
    metrics: dict[str, float]
    by_label: list[dict[str, Any]]
    intervals: dict[str, list[float] | None]
    names: list[str]
    confusion: list[list[int]] | None
    calibration: list[dict[str, Any]] | None


def print_scores(found: Mapping[str, Found], out: str | None) -> None:
    """Print each set's metrics with their intervals, its table by label and what is confused most, then the paths."""
    for name, one in found.items():
        table = table_of(
            [(f"{name}, {counted(one.rows, 'example')}", False), ("value", True), ("95 % from", True), ("to", True)]
        )
        for metric, value in one.metrics.items():
            ends = one.intervals[metric] or (None, None) if metric in one.intervals else ()
            table.add_row(metric, metric_text(value), *map(metric_text, ends))
        print_table("", table)
        if one.by_label:
            print_table("", _by_label(one.by_label))
        if one.confusion is not None and (lines := _confusions(one.names, one.confusion)):
            print_table("", *lines)
    if out is not None:
        kept = [*sorted(Path(out).glob("predictions/*")), *sorted(Path(out).glob("plots/*"))]
        print_table("", *map(os.path.relpath, [*kept, Path(out, "result.json")]))


def _by_label(entries: Sequence[Mapping[str, Any]]) -> Any:
    keys = list(entries[0])
    table = table_of([(key, key != "label") for key in keys])
    for entry in entries:
        cells = (
            entry[key] if key == "label" else count_text(entry[key]) if isinstance(entry[key], int)
            else metric_text(entry[key])
            for key in keys
        )  # fmt: skip
        table.add_row(*map(str, cells))
    return table


def _confusions(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> list[str]:
    pairs = [
        (count, right, predicted)
        for right, line in zip(names, matrix, strict=True)
        for predicted, count in zip(names, line, strict=True)
        if count and right != predicted
    ]
    worst = sorted(pairs, key=lambda pair: -pair[0])[:MOST_CONFUSIONS]
    return [f"{count:,} of {right!r} predicted as {predicted!r}" for count, right, predicted in worst]


def draw_scores(folder: Path, found: Mapping[str, Found]) -> list[Path]:
    """Draw a set's confusion matrix and calibration, where it has them, into a folder; returns the files."""
    written = []
    for name, one in found.items():
        if one.confusion is not None:
            written += save_drawn(folder / f"confusion_{name}.png", partial(_confusion_figure, name, one))
        if one.calibration:
            written += save_drawn(folder / f"calibration_{name}.png", partial(_calibration_figure, name, one))
    return written


def _confusion_figure(name: str, one: Found) -> Figure:
    figure, axes = new_figure()
    draw_confusion(axes, one.names, np.array(one.confusion))
    axes.set_title(f"{name}: share of the rows of a class, by what is predicted")
    return figure


def _calibration_figure(name: str, one: Found) -> Figure:
    figure, axes = new_figure()
    draw_calibration(axes, one.calibration or ())
    axes.set_title(f"{name}: ECE {one.metrics['ece']:.4f}")
    return figure


def draw_confusion(axes: Axes, names: Sequence[str], matrix_CC: np.ndarray) -> None:
    """Draw shares of lines as shades; numbers of rows stand in the cells where there are few classes."""
    share_CC = matrix_CC / np.maximum(matrix_CC.sum(1, keepdims=True), 1)
    axes.imshow(share_CC, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.grid(visible=False)
    size = 9 if len(names) <= MOST_WRITTEN_CELLS else max(3, 250 / len(names))
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0, fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    if len(names) > MOST_WRITTEN_CELLS:
        return
    for (line, column), count in np.ndenumerate(matrix_CC):
        if count:
            colour = "white" if share_CC[line, column] > 0.5 else "black"
            axes.text(column, line, f"{count:,}", ha="center", va="center", color=colour, fontsize=min(size, 9))


def draw_calibration(axes: Axes, bins: Sequence[Mapping[str, Any]]) -> None:
    """Draw the share of right predictions over their mean probability, bin by bin, beside what it should be."""
    axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1.0, label="as it should be")
    probability, right = [entry["probability"] for entry in bins], [entry["right"] for entry in bins]
    most = max(entry["rows"] for entry in bins)
    axes.plot(probability, right, color="#1f77b4", linewidth=1.2)
    sizes = [20 + 180 * entry["rows"] / most for entry in bins]
    axes.scatter(probability, right, s=sizes, color="#1f77b4", label="rows of a bin (size: how many)")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("probability of what is predicted")
    axes.set_ylabel("share that is right")
    axes.legend(loc="upper left")
