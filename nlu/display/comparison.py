"""Figures that compare several runs, as files and as one page that needs no other file.

Axes: P points of a curve, K configurations, N classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from nlu.config.words import counted
from nlu.display.canvas import SET_COLOURS, drawn, new_figure, scientific, styled, svg_of
from nlu.display.figures import FEW_POINTS, smoothed
from nlu.display.page import html_table, section, write_page
from nlu.display.scores import MOST_SHOWN_CLASSES, ShownBin, confusion_figure, draw_calibration
from nlu.storage.files import write_bytes

COLOURS = (*SET_COLOURS, "#332288", "#117733", "#882255")
LINES = ("-", "--", ":", "-.")
MOST_MARKED = 6
"""up to this many curves, points are marked"""
FEW_CURVES = 3
"""up to this many curves, raw values are drawn behind a running mean"""
LEGEND_CHARACTERS = 130
"""in a line of a legend below the axes"""


@dataclass
class Curve:
    """One quantity of one configuration."""

    label: str
    x_P: np.ndarray
    mean_P: np.ndarray
    sd_P: np.ndarray | None = None
    """sample standard deviation over its runs; None for a single run"""
    runs: int = 1
    best: tuple[float, float] | None = None
    """the point of its best evaluation, if the metric decides"""


@dataclass
class Drawing:
    """Curves of one quantity."""

    name: str
    """of the file"""
    title: str
    across: str
    curves: list[Curve] = field(default_factory=list)
    epochs: float | None = None
    """length of an epoch on the x axis, if it is equal for all runs"""
    is_noisy: bool = False
    """whether long curves are drawn as running means"""
    without: list[str] = field(default_factory=list)
    """configurations without such a quantity"""


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


def figure_of(width: float = 10.0, height: float = 6.0) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes and room for a legend."""
    return new_figure((width, height), layout="constrained")


def draw(drawing: Drawing) -> Figure:
    """Draw curves over each other, with deviations as bands and best points as stars; the legend has their values."""
    figure, axes = figure_of()
    count = len(drawing.curves)
    for number, curve in enumerate(drawing.curves):
        colour, line = _look(number)
        x_P, mean_P, marker = curve.x_P, curve.mean_P, None
        if drawing.is_noisy and len(x_P) > FEW_POINTS:
            if count <= FEW_CURVES:
                axes.plot(x_P, mean_P, color=colour, alpha=0.2, linewidth=0.8)
            mean_P = smoothed(mean_P)
        elif len(x_P) <= FEW_POINTS and count <= MOST_MARKED:
            marker = "o"
        axes.plot(x_P, mean_P, label=_legend_text(curve), color=colour, linestyle=line, marker=marker, markersize=3.5)
        if curve.sd_P is not None and not drawing.is_noisy:
            low_P, high_P = mean_P - curve.sd_P, mean_P + curve.sd_P
            axes.fill_between(x_P, low_P, high_P, color=colour, alpha=0.15, linewidth=0)
        if curve.best is not None:
            axes.plot(*curve.best, marker="*", markersize=12, color=colour, markeredgecolor="white", zorder=5)
    _mark_epochs(axes, drawing)
    axes.set_xlabel(drawing.across)
    axes.set_ylabel(drawing.title)
    axes.set_title(_remark(drawing), loc="right", fontsize=8.5, color="#555555")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    scientific(axes)
    if drawing.name == "lr":
        axes.set_ylim(bottom=0)
    _legend(figure, axes)
    return figure


def _legend_text(curve: Curve) -> str:
    runs = "" if curve.runs == 1 else f" (mean of {curve.runs})"
    return f"{curve.label}{runs}" if curve.best is None else f"{curve.label}{runs}: {curve.best[1]:.4f}"


def _remark(drawing: Drawing) -> str:
    """Return the meaning of the marks in a figure."""
    parts = ["star and number: the best of a curve"] if any(curve.best for curve in drawing.curves) else []
    if drawing.is_noisy and any(len(curve.x_P) > FEW_POINTS for curve in drawing.curves):
        parts.append("running means")
    elif any(curve.sd_P is not None for curve in drawing.curves):
        parts.append("band: 1 sd over seeds and folds")
    return "; ".join(parts)


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
    is_grid = len(kept) > MOST_MARKED
    figure, axes = (_f1_grid if is_grid else _f1_dots)(labels, names, f1_KN, sd_KN)
    axes.set_yticks(range(len(names)), [f"{name}  ({rows.get(name, 0):,})" for name in names])
    axes.set_ylabel("class (rows)")
    remarks = [f"the {len(names)} of {len(first.names)} classes with most rows"] * (len(names) < len(first.names))
    if not is_grid and np.isfinite(sd_KN).any():
        remarks.append("bars: 1 sd over seeds and folds")
    axes.set_title(f"{first.set_name}: F1 by class", loc="left")
    axes.set_title("; ".join(remarks), loc="right", fontsize=8.5, color="#555555")
    return figure


def _f1_dots(labels: Sequence[str], names: Sequence[str], f1_KN: np.ndarray, sd_KN: np.ndarray) -> tuple[Figure, Axes]:
    """Draw a dot for each class and configuration."""
    figure, axes = figure_of(height=max(3.2, 1.6 + max(0.26, 0.1 * len(labels)) * len(names)))
    for number, label in enumerate(labels):
        # Side by side within the line of a class: dots of equal height would hide one another.
        place_N = np.arange(len(names)) + (number - (len(labels) - 1) / 2) * min(0.16, 0.7 / len(labels))
        colour, _ = _look(number)
        if np.isfinite(sd_KN[number]).any():
            axes.errorbar(
                f1_KN[number],
                place_N,
                xerr=np.nan_to_num(sd_KN[number]),
                fmt="none",
                ecolor=colour,
                elinewidth=1.0,
                alpha=0.7,
            )
        axes.plot(f1_KN[number], place_N, "o", color=colour, label=label, markersize=5, alpha=0.9)
    lowest = np.nanmin(f1_KN - np.nan_to_num(sd_KN), initial=1.0)
    axes.set_xlim(max(0.0, np.floor(10 * lowest) / 10) - 0.02, 1.02)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("F1")
    _legend(figure, axes)
    return figure, axes


def _f1_grid(labels: Sequence[str], names: Sequence[str], f1_KN: np.ndarray, sd_KN: np.ndarray) -> tuple[Figure, Axes]:
    """Draw a grid of numbers with a column for each configuration, since so many dots would look alike."""
    width = 2.0 + 0.42 * len(labels) + 0.075 * max(map(len, names))
    figure, axes = figure_of(width, 1.2 + 0.24 * len(names) + 0.075 * max(map(len, labels)))
    # `initial` gives a minimum even if all values are NaN.
    axes.imshow(f1_KN.T, cmap="Blues", vmin=np.nanmin(f1_KN, initial=1.0) - 0.05, vmax=1, aspect="auto")
    for (number, place), f1 in np.ndenumerate(f1_KN):
        if np.isfinite(f1):
            is_dark = f1 > (1 + np.nanmin(f1_KN)) / 2
            axes.text(
                number, place, f"{f1:.2f}", ha="center", va="center", fontsize=7, color="white" if is_dark else "black"
            )
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    return figure, axes


def _of_runs(label: str, one: KeptScores) -> str:
    return label if one.runs == 1 else f"{label} (mean of {one.runs})"


def draw_by_length(kept: Mapping[str, KeptScores]) -> Figure:
    """Draw the share of right predictions over the length of texts."""
    figure, axes = figure_of()
    for number, (label, one) in enumerate(kept.items()):
        colour, line = _look(number)
        lengths, right = [part[0] for part in one.right_by_length], [part[1] for part in one.right_by_length]
        axes.plot(lengths, right, color=colour, linestyle=line, marker="o", label=_of_runs(label, one))
    axes.set_xlabel("characters of the text (equally many rows a point)")
    axes.set_ylabel("share that is right")
    axes.set_title(f"{next(iter(kept.values())).set_name}: by length", loc="left")
    _legend(figure, axes)
    return figure


def draw_confusion_of(label: str, one: KeptScores) -> Figure:
    """Draw the confusion matrix of one configuration, over the rows of all its runs."""
    runs = "" if one.runs == 1 else f", rows of {one.runs} runs"
    return confusion_figure(f"{one.set_name}: {label}{runs}", one.names, np.array(one.confusion))


def draw_calibration_of(label: str, one: KeptScores) -> Figure:
    """Draw the calibration of one configuration, over the rows of all its runs."""
    figure, axes = figure_of(width=7.0, height=6.0)
    draw_calibration(axes, one.calibration)
    mean = f"mean ECE of {one.runs} runs" if one.runs > 1 else "ECE"
    axes.set_title(f"{one.set_name}: {label}\n{mean} {one.ece:.4f}", loc="left", fontsize=10)
    return figure


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


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]


def _mark_epochs(axes: Axes, drawing: Drawing) -> None:
    end = max(float(curve.x_P[-1]) for curve in drawing.curves)
    if not drawing.epochs or end / drawing.epochs > 20:
        return
    for number in range(1, int(end / drawing.epochs) + 1):
        axes.axvline(number * drawing.epochs, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)


def _legend(figure: Figure, axes: Axes) -> None:
    """Write the names of the curves below the axes, where they hide nothing; the figure grows by their lines."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = max(1, min(len(labels), LEGEND_CHARACTERS // (longest + 6)))
    # Rounded up.
    lines = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, lines - 2))
    with styled():
        figure.legend(handles, labels, loc="outside lower left", fontsize=8.5, ncols=columns, handlelength=2.4)
