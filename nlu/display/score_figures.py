"""The scores of evaluations as tables and figures: of one run by itself, and of several runs compared.

A comparison is written as files and as one page that needs no other file.

Axes: K configurations, N classes.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from nlu.config.sentences import counted
from nlu.display.canvas import drawn, new_figure, save_drawn, svg_of
from nlu.display.console_tables import count_text, metric_text, numbers, print_table, table_of, texts
from nlu.display.curve_figures import add_legend, figure_of, look
from nlu.display.page import html_table, section, write_page
from nlu.storage.files import write_bytes

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
    """The scores of a set, as `nlu.inference.score_run.Findings` has them."""

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


@dataclass
class KeptScores:
    """What the runs of one configuration predicted for a set."""

    set_name: str
    names: list[str]
    by_label: list[dict[str, Any]]
    """for each class `label`, `examples` in all runs, the mean `f1` over runs, and its `sd`, None for a single run"""
    confusion: list[list[int]]
    calibration: Sequence[ShownBin]
    ece: float
    right_by_length: list[tuple[float, float, int]] = field(default_factory=list)
    """mean number of characters, share that is right, and rows, for each part of the rows by length"""
    runs: int = 1


def draw_by_class(kept: Mapping[str, KeptScores]) -> dict[str, Figure]:
    """Draw the F1 of each class, one figure for all configurations with the same classes."""
    alike: dict[tuple[str, ...], dict[str, KeptScores]] = {}
    for label, one in kept.items():
        # Classes of different data sets cannot share an axis.
        alike.setdefault(tuple(one.names), {})[label] = one
    return {
        f"by_class_{number}" if number else "by_class": _by_class(some) for number, some in enumerate(alike.values())
    }


def _by_class(kept: Mapping[str, KeptScores]) -> Figure:
    """Draw classes from the best to the worst by their mean over configurations; of many, those with the most rows."""
    first = next(iter(kept.values()))
    rows = {entry["label"]: entry.get("examples", 0) for entry in first.by_label}
    names = sorted(first.names, key=lambda name: -rows.get(name, 0))[:MOST_SHOWN_CLASSES]
    values = [{entry["label"]: entry for entry in one.by_label} for one in kept.values()]
    f1_KN, sd_KN = (
        # numpy reads None as NaN.
        np.array([[one.get(name, {}).get(key) for name in names] for one in values], float)
        for key in ("f1", "sd")
    )
    # A class without a score in a configuration counts as 0 there, and stable sorting keeps equal classes by their
    # rows.
    order_N = np.argsort(-np.nan_to_num(f1_KN).mean(0), kind="stable")
    names, f1_KN, sd_KN = [names[place] for place in order_N], f1_KN[:, order_N], sd_KN[:, order_N]
    labels = [_of_runs(label, one) for label, one in kept.items()]
    figure, axes = figure_of(height=max(3.2, 1.6 + max(0.26, 0.1 * len(labels)) * len(names)))
    for number, label in enumerate(labels):
        # Side by side within the line of a class: dots of equal height would hide one another.
        place_N = np.arange(len(names)) + (number - (len(labels) - 1) / 2) * min(0.16, 0.7 / len(labels))
        colour, _ = look(number)
        if np.isfinite(sd_KN[number]).any():
            sd_N = np.nan_to_num(sd_KN[number])
            axes.errorbar(f1_KN[number], place_N, xerr=sd_N, fmt="none", ecolor=colour, elinewidth=1.0, alpha=0.7)
        axes.plot(f1_KN[number], place_N, "o", color=colour, label=label, markersize=5, alpha=0.9)
    lowest = np.nanmin(f1_KN - np.nan_to_num(sd_KN), initial=1.0)
    axes.set_xlim(max(0.0, np.floor(10 * lowest) / 10) - 0.02, 1.02)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("F1")
    axes.set_yticks(range(len(names)), [f"{name}  ({rows.get(name, 0):,})" for name in names])
    axes.set_ylabel("class (rows)")
    remarks = [f"the {len(names)} of {len(first.names)} classes with most rows"] * (len(names) < len(first.names))
    if np.isfinite(sd_KN).any():
        remarks.append("bars: 1 sd over seeds and folds")
    axes.set_title(f"{first.set_name}: F1 by class", loc="left")
    axes.set_title("; ".join(remarks), loc="right", fontsize=8.5, color="#555555")
    add_legend(figure, axes)
    return figure


def _of_runs(label: str, one: KeptScores) -> str:
    return label if one.runs == 1 else f"{label} (mean of {one.runs})"


def draw_by_length(kept: Mapping[str, KeptScores]) -> Figure:
    """Draw the share of right predictions over the length of texts."""
    figure, axes = figure_of()
    for number, (label, one) in enumerate(kept.items()):
        colour, line = look(number)
        lengths, right = [part[0] for part in one.right_by_length], [part[1] for part in one.right_by_length]
        axes.plot(lengths, right, color=colour, linestyle=line, marker="o", label=_of_runs(label, one))
    axes.set_xlabel("characters of the text (equally many rows a point)")
    axes.set_ylabel("share that is right")
    axes.set_title(f"{next(iter(kept.values())).set_name}: by length", loc="left")
    add_legend(figure, axes)
    return figure


def draw_confusion_of(label: str, one: KeptScores) -> Figure:
    """Draw the confusion matrix of one configuration, over the rows of all its runs."""
    runs = "" if one.runs == 1 else f", rows of {one.runs} runs"
    return confusion_figure(f"{one.set_name}: {label}{runs}", one.names, np.array(one.confusion))


def draw_calibration_of(label: str, one: KeptScores) -> Figure:
    """Draw the calibration of one configuration, over the rows of all its runs."""
    mean = f"mean ECE of {one.runs} runs" if one.runs > 1 else "ECE"
    return calibration_figure(f"{one.set_name}: {label}\n{mean} {one.ece:.4f}", one.calibration)


def write_figures(folder: Path, figures: Mapping[str, Figure], suffixes: Sequence[str]) -> list[Path]:
    """Write each figure in each format; returns the files."""
    written = {folder / f"{name}.{suffix}": (one, suffix) for name, one in figures.items() for suffix in suffixes}
    for path, (figure, suffix) in written.items():
        write_bytes(path, drawn(figure, suffix))
    return list(written)


def write_comparison(
    path: Path,
    title: str,
    header: Sequence[tuple[str, bool]],
    lines: Sequence[Sequence[str]],
    figures: Mapping[str, Figure],
) -> None:
    """Write a page with a table and all figures, whose texts the reader's fonts show."""
    cards = [section(html_table(header, lines)), *(section(svg_of(name, one)) for name, one in figures.items())]
    write_page(path, title, counted(len(lines), "configuration"), cards)
