"""Pictures of a sweep: the values over time, each trial on its way, its parameters, and what mattered."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nlu.display.trials import Parameter, Summary, TrialRow
from nlu.storage.files import write_bytes

SIZE_INCHES = (10.0, 6.0)
DOTS_PER_INCH = 100
INCHES_A_PARAMETER = 1.5
MAX_BARS = 20
MAX_CHOICE_LETTERS = 18
MARK_GAP = 0.05
"""Marks nearer than this to an end of an axis would lie on its text."""
COLOURS = {"complete": "#0072b2", "pruned": "#a0a0a0", "running": "#e69f00", "waiting": "#e69f00"}
BEST_COLOUR = "#c1121f"
FAILED_COLOUR = "#7a1f1f"
SHADES = "Blues"
STYLE: Any = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "axes.grid": True, "grid.color": "#e8e8e8", "axes.axisbelow": True, "legend.frameon": False,
}  # fmt: skip


def draw_figures(folder: Path, summary: Summary, importances: dict[str, float]) -> list[Path]:
    """Draw history, intermediate, parallel and importances.png; returns those that had something to show.

    One that has nothing to show is left out, and one that an earlier call left is removed.
    """
    valued = [trial for trial in summary.trials if trial.value is not None]
    figures: dict[str, Callable[[], Figure] | None] = {
        "history": (lambda: _history(summary, valued)) if valued else None,
        "intermediate": (lambda: _intermediate(summary)) if any(trial.steps for trial in valued) else None,
        "parallel": (lambda: _parallel(summary, valued)) if valued and summary.params else None,
        "importances": (lambda: _importances(importances)) if importances else None,
    }
    written = []
    for name, draw in figures.items():
        path = folder / f"{name}.png"
        if draw is None:
            path.unlink(missing_ok=True)
            continue
        with rc_context(STYLE):
            content = io.BytesIO()
            draw().savefig(content, format="png")
        write_bytes(path, content.getvalue())
        written.append(path)
    return written


def _figure(size_inches: tuple[float, float] = SIZE_INCHES) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size_inches, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _finish(axes: Axes, summary: Summary, xlabel: str) -> None:
    axes.set_title(f"{summary.name}  ({summary.counts})", loc="left", fontsize=10, color="#444444")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(summary.metric)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _history(summary: Summary, valued: list[TrialRow]) -> Figure:
    figure, axes = _figure()
    for state, colour in COLOURS.items():
        points = [(trial.number, trial.value) for trial in valued if trial.state == state]
        if points:
            numbers, values = zip(*points, strict=True)
            filling = "none" if state == "pruned" else colour
            axes.scatter(numbers, values, s=34, label=state, zorder=3, facecolors=filling, edgecolors=colour)
    done = [trial for trial in valued if trial.state == "complete"]
    if summary.best and done:
        pick = np.maximum if summary.maximize else np.minimum
        so_far = pick.accumulate(np.array([trial.value for trial in done], dtype=float))
        last = max(trial.number for trial in summary.trials)
        places, heights = [*(trial.number for trial in done), last], [*so_far, so_far[-1]]
        axes.step(places, heights, where="post", color=BEST_COLOUR, linewidth=1.4, label="best so far")
        _mark_best(axes, summary, summary.best.number, len(summary.trials) - 1)
    failed = [trial.number for trial in summary.trials if trial.state == "failed"]
    if failed:
        bottom = axes.get_xaxis_transform()
        axes.scatter(
            failed, [0.015] * len(failed), marker="x", s=30, color=FAILED_COLOUR, transform=bottom, label="failed"
        )
    axes.margins(y=0.12)
    _finish(axes, summary, "trial")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _mark_best(axes: Axes, summary: Summary, x: float, end: float) -> None:
    assert summary.best is not None and summary.best.value is not None
    axes.scatter([x], [summary.best.value], s=110, facecolors="none", edgecolors=BEST_COLOUR, linewidths=1.6, zorder=4)
    left = end > 0 and x > 0.75 * end
    axes.annotate(
        f"{summary.best.value:.4g} (trial {summary.best.number})", (x, summary.best.value),
        xytext=(-10 if left else 10, 9 if summary.maximize else -16), textcoords="offset points",
        ha="right" if left else "left", color=BEST_COLOUR, fontsize=9,
    )  # fmt: skip


def _intermediate(summary: Summary) -> Figure:
    figure, axes = _figure()
    labelled = set()
    for trial in summary.ranked[::-1]:
        if not trial.steps or trial.state == "failed":
            continue
        is_best = summary.best is not None and trial.number == summary.best.number
        colour = BEST_COLOUR if is_best else COLOURS[trial.state]
        label = f"best (trial {trial.number})" if is_best else trial.state
        steps, values = zip(*trial.steps, strict=True)
        axes.plot(
            steps, values, color=colour, linewidth=2.0 if is_best else 1.1,
            alpha=1.0 if is_best else strength_of(summary),
            marker="o", markersize=4 if len(steps) <= 12 and trial.state != "pruned" else 0, zorder=4 if is_best else 2,
            label=None if label in labelled else label,
        )  # fmt: skip
        labelled.add(label)
        if trial.state == "pruned":
            axes.scatter(steps[-1:], values[-1:], marker="x", s=36, color=colour, zorder=3)
    _finish(axes, summary, "examples seen")
    axes.set_xlim(left=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def strength_of(summary: Summary) -> float:
    """Return how opaque a curve is: many on one another must still show where they are dense."""
    return min(0.7, max(0.18, 25 / len(summary.trials)))


def _parallel(summary: Summary, valued: list[TrialRow]) -> Figure:
    params = summary.params
    figure, axes = _figure((max(SIZE_INCHES[0], INCHES_A_PARAMETER * (len(params) + 1)), SIZE_INCHES[1]))
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    scores = {trial.number: float(trial.value or 0.0) for trial in valued}
    low, high = min(scores.values()), max(scores.values())
    shade = Normalize(low, high if high > low else low + 1)
    best = summary.best.number if summary.best else None
    for trial in sorted(valued, key=lambda trial: (trial.number == best, trial.state == "complete")):
        height = float(shade(scores[trial.number]))
        strength = height if summary.maximize else 1 - height
        heights = [*(place_of(param, trial.params) for param in params), height]
        done, is_best = trial.state == "complete", trial.number == best
        axes.plot(
            range(len(heights)), heights, color=BEST_COLOUR if is_best else colormaps[SHADES](0.3 + 0.7 * strength),
            linewidth=2.2 if is_best else 1.6 if done else 0.9, alpha=1.0 if is_best else strength_of(summary),
            linestyle="-" if done else (0, (4, 3)), solid_joinstyle="round",
        )  # fmt: skip
    for place, param in enumerate(params):
        _draw_axis(axes, place, ticks_of(param), has_absent=any(param.name not in trial.params for trial in valued))
    marks = [value for value in MaxNLocator(5).tick_values(low, high) if low <= value <= high] if high > low else [low]
    _draw_axis(axes, len(params), [(float(shade(value)), f"{value:.4g}") for value in marks], has_absent=False)
    names = [*(param.name for param in params), summary.metric]
    axes.set_xticks(range(len(names)), [_broken(name) for name in names], fontsize=9)
    axes.tick_params(axis="x", length=0, pad=10)
    axes.set_yticks([])
    axes.set_ylim(-0.14, 1.04)
    axes.set_xlim(-0.35, len(params) + 0.6)
    best_words = "" if best is None else f"red: the best, trial {best}; "
    title = f"{summary.name}  ({best_words}the darker the better; dashed: not complete)"
    axes.set_title(title, loc="left", fontsize=10, color="#444444")
    return figure


def place_of(param: Parameter, params: dict[str, Any]) -> float:
    """Return where a trial's value stands on the axis of a parameter, 0 to 1; -0.1 where it has none."""
    if param.name not in params:
        return -0.1
    value = params[param.name]
    if param.scale == "choice":
        return (param.choices.index(param.text(value)) + 0.5) / len(param.choices)
    low, high, value = _scaled(param, param.low), _scaled(param, param.high), _scaled(param, float(value))
    return 0.5 if high == low else (value - low) / (high - low)


def _scaled(param: Parameter, value: float) -> float:
    return math.log10(value) if param.scale == "log" else value


def ticks_of(param: Parameter) -> list[tuple[float, str]]:
    """Return (place, text) of the marks on the axis of a parameter."""
    if param.scale == "choice":
        return [((place + 0.5) / len(param.choices), _short(text)) for place, text in enumerate(param.choices)]
    if param.low == param.high:
        return [(0.5, f"{param.low:g}")]
    if param.scale == "log":
        first, last = math.floor(math.log10(param.low)), math.ceil(math.log10(param.high))
        digits = (1,) if last - first > 3 else (1, 2, 5)
        marks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    else:
        marks = list(MaxNLocator(6).tick_values(param.low, param.high))
    ends = [(0.0, param.low), (1.0, param.high)]
    inside = [(place_of(param, {param.name: mark}), mark) for mark in marks if param.low < mark < param.high]
    free = [(place, mark) for place, mark in inside if MARK_GAP < place < 1 - MARK_GAP]
    return [(place, f"{mark:.4g}") for place, mark in [ends[0], *free, ends[1]]]


def _draw_axis(axes: Axes, place: int, ticks: list[tuple[float, str]], has_absent: bool) -> None:
    axes.plot([place, place], [0, 1], color="#888888", linewidth=1.0, zorder=5)
    for height, text in [*ticks, *[(-0.1, "not set")] * has_absent]:
        axes.plot([place - 0.015, place], [height, height], color="#888888", linewidth=1.0, zorder=5)
        axes.annotate(
            text, (place, height), xytext=(4, 0), textcoords="offset points", fontsize=8, va="center", zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHOICE_LETTERS else f"{text[: MAX_CHOICE_LETTERS - 3]}..."


def _broken(name: str) -> str:
    return name.replace(".", ".\n")


def _importances(importances: dict[str, float]) -> Figure:
    shown = list(importances.items())[:MAX_BARS]
    figure, axes = _figure((SIZE_INCHES[0], max(2.4, 0.5 * len(shown) + 1.2)))
    names, values = zip(*shown[::-1], strict=True)
    bars = axes.barh(names, values, color=COLOURS["complete"], height=0.6)
    axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=4, fontsize=9)
    axes.grid(False, axis="y")
    axes.margins(x=0.1)
    axes.set_xlabel("share of what the parameters explain")
    return figure
