"""The scores of an evaluation as tables and figures."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypedDict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from nlu.config.words import counted
from nlu.display.canvas import new_figure, save_drawn
from nlu.display.tables import count_text, metric_text, numbers, print_table, table_of, texts

MOST_CONFUSIONS = 5
MOST_WRITTEN_CELLS = 20
"""up to this many classes, each cell of a confusion matrix shows its number"""
MOST_SHOWN_CLASSES = 60
"""most classes in a figure, since more would not be readable"""
LARGE_MISTAKE = 0.05
"""beyond `MOST_WRITTEN_CELLS`, mistakes are written if they are at least this share of a class"""
MOST_NAME = 28
"""characters in the name of a class"""


class ShownBin(TypedDict):
    """What is drawn of a bin of `nlu.metrics.calibration`."""

    rows: int
    probability: float
    right: float


class ShownScores(Protocol):
    """The scores of a set, as `nlu.inference.findings.Findings` has them."""

    rows: int
    metrics: dict[str, float]
    intervals: dict[str, list[float] | None]
    names: list[str]
    confusion: list[list[int]] | None

    # Read-only, so that lists of entries with more keys fit too.
    @property
    def by_label(self) -> Sequence[Mapping[str, object]]: ...

    @property
    def calibration(self) -> Sequence[ShownBin] | None: ...


def print_scores(found: Mapping[str, ShownScores], out: str | None) -> None:
    """Print each set's metrics with intervals, its table by label and its most frequent confusions, then the paths."""
    for name, one in found.items():
        ends_of = numbers("95 % from", "to") * any(one.intervals.values())
        table = table_of([*texts(f"{name}, {counted(one.rows, 'example')}"), *numbers("value"), *ends_of])
        for metric, value in one.metrics.items():
            ends = one.intervals[metric] or (None, None) if metric in one.intervals and ends_of else ()
            table.add_row(metric, metric_text(value), *map(metric_text, ends))
        print_table("", table)
        if one.by_label:
            print_table("", _by_label(one.by_label))
        if one.confusion is not None and (lines := _confusions(one.names, one.confusion)):
            print_table("", *lines)
    if out is not None:
        kept = [*sorted(Path(out).glob("predictions/*")), *sorted(Path(out).glob("plots/*"))]
        print_table("", *map(os.path.relpath, [*kept, Path(out, "result.json")]))


def _by_label(entries: Sequence[Mapping[str, object]]) -> Table:
    def shown(key: str, value: object) -> str:
        if key == "label":
            return str(value)
        return count_text(value) if isinstance(value, int) else metric_text(value if isinstance(value, float) else None)

    columns = [(key, key != "label") for key in entries[0]]
    return table_of(columns, ([shown(key, entry[key]) for key, _ in columns] for entry in entries))


def _confusions(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> list[str]:
    pairs = [
        (count, right, predicted)
        for right, line in zip(names, matrix, strict=True)
        for predicted, count in zip(names, line, strict=True)
        if count and right != predicted
    ]
    # sorted is stable, so equally frequent confusions keep the order of the labels.
    worst = sorted(pairs, key=lambda pair: -pair[0])[:MOST_CONFUSIONS]
    return [f"{count:,} of {right!r} predicted as {predicted!r}" for count, right, predicted in worst]


def draw_scores(folder: Path, found: Mapping[str, ShownScores]) -> list[Path]:
    """Draw the confusion matrix and the calibration of each set that has them into a folder; returns the files."""
    written = []
    for name, one in found.items():
        if one.confusion is not None:
            draw = partial(confusion_figure, name, one.names, np.array(one.confusion))
            written += save_drawn(folder / f"confusion_{name}.png", draw)
        if one.calibration:
            draw = partial(calibration_figure, f"{name}: ECE {one.metrics['ece']:.4f}", one.calibration)
            written += save_drawn(folder / f"calibration_{name}.png", draw)
    return written


def confusion_figure(title: str, names: Sequence[str], matrix_CC: np.ndarray) -> Figure:
    """Draw a confusion matrix; of very many classes, only those that are confused most."""
    if len(names) > MOST_SHOWN_CLASSES:
        names, matrix_CC, remark = most_confused(names, matrix_CC)
        title = f"{title} ({remark})"
    side = 2.4 + (0.5 if len(names) <= MOST_WRITTEN_CELLS else 0.2) * max(len(names), 4)
    figure, axes = new_figure((side + 1.2, side + 0.8), layout="constrained")
    draw_confusion(axes, names, matrix_CC)
    if len(names) > MOST_WRITTEN_CELLS:
        title = f"{title}\nnumbers: percent of a class that are mistaken for another, from {LARGE_MISTAKE:.0%} on"
    axes.set_title(title, loc="left", fontsize=10)
    return figure


def most_confused(names: Sequence[str], matrix_CC: np.ndarray) -> tuple[list[str], np.ndarray, str]:
    """Keep the classes with the most errors, as label or as prediction, in their order, and merge the others into one.

    Returns names, matrix, and a description.
    """
    wrong_C = matrix_CC.sum(0) + matrix_CC.sum(1) - 2 * matrix_CC.diagonal()
    kept = np.sort(np.argsort(-wrong_C, kind="stable")[: MOST_SHOWN_CLASSES - 1])
    group_C = np.full(len(names), len(kept))
    group_C[kept] = np.arange(len(kept))
    # All other classes share the last number.
    joined_KK = np.zeros((len(kept) + 1, len(kept) + 1), matrix_CC.dtype)
    np.add.at(joined_KK, (group_C[:, None], group_C[None, :]), matrix_CC)
    others = f"{len(names) - len(kept)} others"
    return (
        [*(names[place] for place in kept), others],
        joined_KK,
        f"the {len(kept)} of {len(names)} classes that are confused most",
    )


def draw_confusion(axes: Axes, names: Sequence[str], matrix_CC: np.ndarray) -> None:
    """Draw the predictions for each class: shades are shares of the class, numbers in the cells are rows.

    With many classes, only large mistakes have a number, which is their share in percent.
    """
    share_CC = matrix_CC / np.maximum(matrix_CC.sum(1, keepdims=True), 1)
    is_small = len(names) <= MOST_WRITTEN_CELLS
    # Without numbers, small shares must be visible too.
    shades = PowerNorm(1.0 if is_small else 0.5, vmin=0, vmax=1)
    image = axes.imshow(share_CC, cmap="Blues", norm=shades, aspect="equal")
    marks = (0, 0.25, 0.5, 0.75, 1) if is_small else (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.5, pad=0.02, ticks=marks, format=PercentFormatter(1.0, 0))
    bar.set_label("share of the rows of a class")
    bar.outline.set_visible(False)  # type: ignore[operator]
    size = 9 if is_small else 7
    shown = [name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 1]}…" for name in names]
    is_turned = not is_small or max(map(len, shown), default=0) * len(shown) > 40
    axes.set_xticks(range(len(names)), shown, fontsize=size, rotation=90 if is_turned else 0)
    is_empty_C = matrix_CC.sum(1) == 0
    labels = [f"{name} (no rows)" if is_empty else name for name, is_empty in zip(shown, is_empty_C, strict=True)]
    axes.set_yticks(range(len(names)), labels, fontsize=size)
    # White would say that the rows of such a class are never predicted as any.
    for line in np.flatnonzero(is_empty_C):
        axes.axhspan(line - 0.5, line + 0.5, color="#d9d9d9", linewidth=0)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    # Lines between cells show the row and column of a cell in a wide matrix.
    axes.set_xticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.grid(visible=True, which="minor", color="#e8e8e8", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    for (line, column), count in np.ndenumerate(matrix_CC):
        share = share_CC[line, column]
        if count and (is_small or (line != column and share >= LARGE_MISTAKE)):
            text = f"{count:,}" if is_small else f"{100 * share:.0f}"
            colour = "white" if shades(share) > 0.5 else "black"
            axes.text(column, line, text, ha="center", va="center", color=colour, fontsize=9 if is_small else 6)


def calibration_figure(title: str, bins: Sequence[ShownBin]) -> Figure:
    """Draw the share of right predictions over the mean probability of each bin, and the diagonal."""
    figure, axes = new_figure((7.0, 6.0), layout="constrained")
    axes.set_title(title, loc="left", fontsize=10)
    axes.plot([0, 1], [0, 1], linestyle="--", color="#888888", linewidth=1.0, label="as it should be")
    probability, right = [entry["probability"] for entry in bins], [entry["right"] for entry in bins]
    most = max(entry["rows"] for entry in bins)
    axes.plot(probability, right, color="#1f77b4", linewidth=1.2)
    # A bin of few rows may lie far from the diagonal by chance, so its dot is small.
    sizes = [20 + 180 * entry["rows"] / most for entry in bins]
    axes.scatter(probability, right, s=sizes, color="#1f77b4", label="rows of a bin (size: how many)")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("probability of what is predicted")
    axes.set_ylabel("share that is right")
    axes.legend(loc="upper left")
    return figure
