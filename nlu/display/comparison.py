"""Several runs in one figure each, as files and as one page that needs no other file."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nlu.display.canvas import SET_COLOURS, drawn, new_figure
from nlu.display.curves import Drawing, KeptScores
from nlu.display.figures import FEW_POINTS
from nlu.display.plain_page import html_table, write_plain_page
from nlu.display.scores import draw_calibration, draw_confusion
from nlu.display.search import svg_of
from nlu.storage.files import write_bytes

COLOURS = (*SET_COLOURS, "#332288", "#117733", "#882255")
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D")
"""after each round of colours"""
MOST_MARKED = 6
"""curves up to which each has a mark at its best point"""
MOST_SHOWN_CLASSES = 60


def figure_of(width: float = 10.0, height: float = 6.0) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, beside which a legend has room."""
    return new_figure((width, height), layout="constrained")


def draw(drawing: Drawing) -> Figure:
    """Draw the curves over each other, deviations as bands, best points and epochs marked."""
    # What stands beside the axes takes room of its own.
    figure, axes = figure_of(width=10.0 if len(drawing.curves) <= MOST_MARKED else 13.0)
    for number, curve in enumerate(drawing.curves):
        colour, line = _look(number)
        label = curve.label if curve.runs == 1 else f"{curve.label} (mean of {curve.runs}, band 1 sd)"
        marker = "o" if len(curve.x_P) <= FEW_POINTS and len(drawing.curves) <= MOST_MARKED else None
        axes.plot(curve.x_P, curve.mean_P, color=colour, linestyle=line, label=label, marker=marker, markersize=3.5)
        if curve.sd_P is not None:
            low_P, high_P = curve.mean_P - curve.sd_P, curve.mean_P + curve.sd_P
            axes.fill_between(curve.x_P, low_P, high_P, color=colour, alpha=0.15, linewidth=0)
        if curve.best is not None:
            axes.plot(*curve.best, marker="*", markersize=12, color=colour, markeredgecolor="white", zorder=5)
            if len(drawing.curves) <= MOST_MARKED:
                axes.annotate(
                    f"{curve.best[1]:.4g}", curve.best, textcoords="offset points", xytext=(6, 6), color=colour
                )
    _mark_epochs(axes, drawing)
    axes.set_xlabel(drawing.across)
    axes.set_title(drawing.title)
    if drawing.name == "lr":
        axes.set_ylim(bottom=0)
    _legend(axes, len(drawing.curves))
    return figure


def draw_by_class(kept: Mapping[str, KeptScores]) -> dict[str, Figure]:
    """Draw the F1 of each class, configurations beside one another; a figure for those of the same classes."""
    alike: dict[tuple[str, ...], dict[str, KeptScores]] = {}
    for label, one in kept.items():
        alike.setdefault(tuple(one.names), {})[label] = one
    return {
        f"by_class_{number}" if number else "by_class": _by_class(some) for number, some in enumerate(alike.values())
    }


def _by_class(kept: Mapping[str, KeptScores]) -> Figure:
    first = next(iter(kept.values()))
    names = first.names[:MOST_SHOWN_CLASSES]
    figure, axes = figure_of(height=max(4.0, 1.2 + 0.28 * len(names)))
    for number, (label, one) in enumerate(kept.items()):
        f1 = {entry["label"]: entry["f1"] for entry in one.by_label}
        spread = (number - (len(kept) - 1) / 2) * min(0.12, 0.7 / len(kept))
        places = np.arange(len(names)) + spread
        colour, _ = _look(number)
        marker = MARKERS[number // len(COLOURS) % len(MARKERS)]
        f1_N = [f1.get(name, np.nan) for name in names]
        axes.plot(f1_N, places, marker, color=colour, label=label, markersize=5, alpha=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("F1")
    axes.set_title(f"{first.set_name}: by class")
    _legend(axes, len(kept))
    return figure


def draw_by_length(kept: Mapping[str, KeptScores]) -> Figure:
    """Draw the share of right predictions over the length of texts."""
    figure, axes = figure_of()
    for number, (label, one) in enumerate(kept.items()):
        colour, line = _look(number)
        lengths, right = [part[0] for part in one.right_by_length], [part[1] for part in one.right_by_length]
        axes.plot(lengths, right, color=colour, linestyle=line, marker="o", label=label)
    axes.set_xlabel("characters of the text (equally many rows a point)")
    axes.set_ylabel("share that is right")
    axes.set_title(f"{next(iter(kept.values())).set_name}: by length")
    _legend(axes, len(kept))
    return figure


def draw_confusion_of(label: str, one: KeptScores) -> Figure:
    """Draw the confusion matrix of one configuration."""
    side = max(6.0, min(16.0, 2.0 + 0.24 * len(one.names)))
    figure, axes = figure_of(width=side * 1.15, height=side)
    draw_confusion(axes, one.names, np.array(one.confusion))
    axes.set_title(f"{one.set_name}: {label}")
    return figure


def draw_calibration_of(label: str, one: KeptScores) -> Figure:
    """Draw the calibration of one configuration."""
    figure, axes = figure_of(width=7.0, height=6.0)
    draw_calibration(axes, one.calibration)
    axes.set_title(f"{one.set_name}: {label}, ECE {one.ece:.4f}")
    return figure


def write_figures(folder: Path, figures: Mapping[str, Figure], suffixes: Sequence[str]) -> list[Path]:
    """Write each figure in each format; returns the files."""
    written = []
    for name, figure in figures.items():
        for suffix in suffixes:
            path = folder / f"{name}.{suffix}"
            write_bytes(path, drawn(figure, suffix))
            written.append(path)
    return written


def write_comparison(
    path: Path, title: str, header: Sequence[str], lines: Sequence[Sequence[str]], figures: Mapping[str, Figure]
) -> None:
    """Write a page with a table and all figures inside it; its texts are texts, so the reader's fonts show them."""
    drawn = "".join(
        f"<figure id={html.escape(name, quote=True)!r}>{svg_of(name, figure)}</figure>"
        for name, figure in figures.items()
    )
    table = html_table([(name, number > 0) for number, name in enumerate(header)], lines)
    write_plain_page(path, title, table + drawn)


def _look(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]


def _mark_epochs(axes: Axes, drawing: Drawing) -> None:
    end = max(float(curve.x_P[-1]) for curve in drawing.curves)
    if not drawing.epochs or end / drawing.epochs > 20:
        return
    for number in range(1, int(end / drawing.epochs) + 1):
        axes.axvline(number * drawing.epochs, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)


def _legend(axes: Axes, count: int) -> None:
    if count <= MOST_MARKED:
        axes.legend(loc="best", fontsize=9)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=7.5)
