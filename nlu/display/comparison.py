"""Figures that compare several runs, as files and as one page that needs no other file.

Axes: K configurations, N classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nlu.config.words import counted
from nlu.display.canvas import drawn, svg_of
from nlu.display.figures import add_legend, figure_of, look
from nlu.display.page import html_table, section, write_page
from nlu.display.scores import MOST_SHOWN_CLASSES, ShownBin, calibration_figure, confusion_figure
from nlu.storage.files import write_bytes


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
