"""Figures of what files hold, from the record of a survey, as SVG that takes its colours from the page around it.

The record is what `nlu.data.survey.report.as_record` returns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nlu.display.canvas import SET_COLOURS, STYLE, families, new_figure
from nlu.display.search import svg_of

TEXT_COLOUR, GRID_COLOUR = "#010203", "#010204"
"""stand for those of the page"""
ON_PAGE = {TEXT_COLOUR: "currentColor", GRID_COLOUR: "var(--line)"} | {
    colour: f"var(--set-{place})" for place, colour in enumerate(SET_COLOURS)
}
THEME: Any = {
    **STYLE, "text.color": TEXT_COLOUR, "axes.labelcolor": TEXT_COLOUR, "axes.titlecolor": TEXT_COLOUR,
    "xtick.color": TEXT_COLOUR, "ytick.color": TEXT_COLOUR, "axes.edgecolor": GRID_COLOUR, "grid.color": GRID_COLOUR,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none", "legend.facecolor": "none",
    "legend.framealpha": 1.0,
}  # fmt: skip
WIDTH_INCHES = 5.4
"""small, so that letters stay readable on a telephone"""
MOST_LABELS = 30
LEAST_CLASS = 0.0005
"""share of the characters from which on a class has a bar"""
Sets = Mapping[str, Mapping[str, Any]]


def draw_survey(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures by name: labels (or numbers), lengths, characters, cuts, classes; of those that fit."""
    sets: Sets = record["sets"]
    with rc_context({**THEME, "font.family": families()}):
        figures = {
            "labels": _labels(sets),
            "lengths": _histogram(sets, "length_histogram", f"{record['unit']} of a row", record["max_len"]),
            "characters": _histogram(sets, "character_histogram", "characters of a row", None),
            "cuts": _cuts(sets, record["max_len"]),
            "classes": _classes(sets),
        }
        return {name: _themed(svg_of(name, figure)) for name, figure in figures.items() if figure is not None}


def _themed(svg: str) -> str:
    for colour, on_page in ON_PAGE.items():
        svg = svg.replace(colour, on_page)
    return svg


def _new(height_inches: float = 3.2) -> tuple[Figure, Axes]:
    figure, axes = new_figure((WIDTH_INCHES, height_inches), layout="constrained", style=THEME)
    return figure, axes


def _colour(place: int) -> str:
    return SET_COLOURS[place % len(SET_COLOURS)]


def _labels(sets: Sets) -> Figure | None:
    shown = {name: one["labels"] for name, one in sets.items() if one["labels"]}
    if not shown:
        return None
    totals: dict[str, int] = {}
    for labels in shown.values():
        for label, count in labels.items():
            totals[label] = totals.get(label, 0) + count
    names = sorted(totals, key=lambda label: -totals[label])[:MOST_LABELS]
    figure = _bars(
        names,
        {name: [labels.get(label, 0) / sum(labels.values()) for label in names] for name, labels in shown.items()},
    )
    figure.axes[0].set_xlabel("share of the set")
    return figure


def _classes(sets: Sets) -> Figure:
    shares = {name: one["character_classes"] for name, one in sets.items()}
    greatest: dict[str, float] = {}
    for own in shares.values():
        for kind, share in own.items():
            greatest[kind] = max(greatest.get(kind, 0.0), share)
    names = [kind for kind in sorted(greatest, key=lambda one: -greatest[one]) if greatest[kind] >= LEAST_CLASS]
    figure = _bars(names, {name: [own.get(kind, 0.0) for kind in names] for name, own in shares.items()})
    figure.axes[0].set_xlabel("share of the characters")
    return figure


def _bars(names: Sequence[str], values: Mapping[str, Sequence[float]]) -> Figure:
    """Bars from left to right, those of the sets beside one another."""
    figure, axes = _new(max(1.6, 0.9 + (0.14 + 0.13 * len(values)) * len(names)))
    height = 0.8 / len(values)
    for place, (set_name, own) in enumerate(values.items()):
        at = np.arange(len(names)) + (place - (len(values) - 1) / 2) * height
        bars = axes.barh(at, own, height=0.92 * height, color=_colour(place), label=set_name)
        if len(values) <= 3:
            axes.bar_label(bars, [f"{share:.1%}" for share in own], padding=3, fontsize=7.5)
    axes.set_yticks(range(len(names)), [name if len(name) <= 32 else f"{name[:31]}…" for name in names])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.14)
    _percent(axes.xaxis)
    if len(values) > 1:
        figure.legend(loc="outside upper right", fontsize=8, ncols=min(4, len(values)))
    return figure


def _histogram(sets: Sets, key: str, across: str, max_len: int | None) -> Figure:
    figure, axes = _new()
    for place, (name, one) in enumerate(sets.items()):
        width, counts = one[key]["width"], np.asarray(one[key]["counts"], float)
        edges = np.arange(len(counts) + 1) * width
        # Bins of sets may differ in width.
        axes.stairs(counts / counts.sum() / width, edges, color=_colour(place), linewidth=1.5, label=name)
        axes.stairs(counts / counts.sum() / width, edges, color=_colour(place), fill=True, alpha=0.1)
    if max_len is not None:
        axes.axvline(max_len, color=TEXT_COLOUR, linewidth=1.0, linestyle="--", label=f"max_len {max_len}")
    axes.set_xlabel(across)
    axes.set_ylabel("share of rows of each length")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _percent(axes.yaxis)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(fontsize=8)
    return figure


def _cuts(sets: Sets, max_len: int) -> Figure:
    figure, axes = _new()
    for place, (name, one) in enumerate(sets.items()):
        lengths, shares = [cut["max_len"] for cut in one["cut"]], [cut["rows"] for cut in one["cut"]]
        axes.plot(lengths, shares, "o-", color=_colour(place), label=name, markersize=3.5)
    axes.axvline(max_len, color=TEXT_COLOUR, linewidth=1.0, linestyle="--", label=f"max_len {max_len}")
    axes.set_xlabel("max_len")
    axes.set_ylabel("share of rows that are cut")
    axes.set_ylim(bottom=0)
    _percent(axes.yaxis)
    axes.legend(fontsize=8)
    return figure


def _percent(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
