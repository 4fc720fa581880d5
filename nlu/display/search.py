"""Pictures of a sweep: the values over time, each trial on its way, its parameters, and what mattered."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nlu.display.canvas import drawn, families, save_figure
from nlu.display.trials import Parameter, Summary, TrialRow

SIZE_INCHES = (10.0, 6.0)
DOTS_PER_INCH = 100
INCHES_A_PARAMETER = 1.5
MAX_BARS = 20
MAX_CHOICE_LETTERS = 18
FIGURES = ("history", "intermediate", "parallel", "importances")
MAX_STEPS = 200
"""Points of one curve; a longer one is thinned, its last point stays."""
POINTER_WIDTH = 10.0
"""Width of what a pointer can rest on around a curve, which is not to be seen."""
MARK_GAP = 0.05
"""Marks nearer than this to an end of an axis would lie on its text."""
COLOURS = {"complete": "#0072b2", "pruned": "#a0a0a0", "running": "#e69f00", "waiting": "#e69f00"}
BEST_COLOUR = "#c1121f"
FAILED_COLOUR = "#7a1f1f"
SHADES = "Blues"
STYLE: Any = {
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888",
    "axes.grid": True, "grid.color": "#e8e8e8", "axes.axisbelow": True, "legend.frameon": False,
    "text.parse_math": False,
}  # fmt: skip


def draw_figures(summary: Summary, importances: dict[str, float]) -> dict[str, Figure]:
    """Draw history, intermediate, parallel and importances, of these what has something to show."""
    valued = [trial for trial in summary.trials if trial.value is not None]
    found: dict[str, Figure] = {}
    with rc_context({**STYLE, "font.family": families()}):
        if valued:
            found["history"] = _history(summary, valued)
        if any(trial.steps for trial in valued):
            found["intermediate"] = _intermediate(summary)
        if valued and summary.params:
            found["parallel"] = _parallel(summary, valued)
        if importances:
            found["importances"] = _importances(importances)
    return found


def write_figures(folder: Path, figures: Mapping[str, Figure]) -> list[Path]:
    """Write each figure as NAME.png; one that an earlier call left and that is none of these is removed."""
    for name in FIGURES:
        if name not in figures:
            (folder / f"{name}.png").unlink(missing_ok=True)
    written = []
    for name, figure in figures.items():
        written.append(save_figure(figure, folder / f"{name}.png"))
    return written


def svg_of(name: str, figure: Figure) -> str:
    """Return the same figure as an element for a page of HTML, its text as text.

    What belongs to a trial carries its number as `data-trial`. Nothing in it refers to anything outside.
    """
    # Names inside one figure must not be those of another on the same page.
    text = drawn(figure, "svg", salt=name).decode()
    text = text[text.index("<svg") :]
    head, body = text[: text.index(">") + 1], text[text.index(">") + 1 :]
    size = re.search(r'viewBox="[^"]*"', head)
    assert size, "an SVG of matplotlib has a viewBox"
    body = re.sub(r'<g id="trial-(\d+)">', r'<g data-trial="\1">', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    return f'<svg {size[0]} role="img" xmlns="http://www.w3.org/2000/svg">{" ".join(body.split())}'


def _figure(size_inches: tuple[float, float] = SIZE_INCHES) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size_inches, dpi=DOTS_PER_INCH, layout="constrained")
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
        for place, trial in enumerate(trial for trial in valued if trial.state == state):
            axes.plot(
                [trial.number], [trial.value or 0.0], "o", markersize=5.8, label=None if place else state, zorder=3,
                markerfacecolor="none" if state == "pruned" else colour, markeredgecolor=colour,
                gid=f"trial-{trial.number}",
            )  # fmt: skip
    done = [trial for trial in valued if trial.state == "complete"]
    if summary.best and done:
        pick = np.maximum if summary.maximize else np.minimum
        so_far = pick.accumulate(np.array([trial.value for trial in done], dtype=float))
        last = max(trial.number for trial in summary.trials)
        places, heights = [*(trial.number for trial in done), last], [*so_far, so_far[-1]]
        axes.step(places, heights, where="post", color=BEST_COLOUR, linewidth=1.4, label="best so far")
        _mark_best(axes, summary, summary.best.number, len(summary.trials) - 1)
    for place, number in enumerate(trial.number for trial in summary.trials if trial.state == "failed"):
        axes.plot(
            [number], [0.015], "x", markersize=5.5, color=FAILED_COLOUR, transform=axes.get_xaxis_transform(),
            label=None if place else "failed", gid=f"trial-{number}",
        )  # fmt: skip
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
        steps, values = zip(*_thinned(trial.steps), strict=True)
        _draw_pointer_target(axes, steps, values, trial.number)
        axes.plot(
            steps, values, gid=f"trial-{trial.number}", color=colour, linewidth=2.0 if is_best else 1.1,
            alpha=1.0 if is_best else strength_of(summary),
            marker="o", markersize=4 if len(steps) <= 12 and trial.state != "pruned" else 0, zorder=4 if is_best else 2,
            label=None if label in labelled else label,
        )  # fmt: skip
        labelled.add(label)
        if trial.state == "pruned":
            axes.plot(steps[-1:], values[-1:], "x", markersize=6, color=colour, zorder=3, gid=f"trial-{trial.number}")
    _finish(axes, summary, "examples seen")
    axes.set_xlim(left=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _thinned(steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = -(-len(steps) // MAX_STEPS)
    return [*steps[:-1:stride], *steps[-1:]] if stride > 1 else steps


def _draw_pointer_target(axes: Axes, x: Sequence[float], y: Sequence[float], number: int) -> None:
    axes.plot(x, y, color="#ffffff", alpha=0.0, linewidth=POINTER_WIDTH, gid=f"trial-{number}")


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
        _draw_pointer_target(axes, range(len(heights)), heights, trial.number)
        axes.plot(
            range(len(heights)), heights, gid=f"trial-{trial.number}",
            color=BEST_COLOUR if is_best else colormaps[SHADES](0.3 + 0.7 * strength),
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
    marks_shown = [ends[0], *free, ends[1]]
    return list(zip((place for place, _ in marks_shown), _alike([mark for _, mark in marks_shown]), strict=True))


def _alike(values: Sequence[float]) -> list[str]:
    """Numbers of one axis in one form: with powers of ten where any of them needs it."""
    texts = [f"{value:.4g}" for value in values]
    if not any(value and abs(value) < 1e-3 or abs(value) >= 1e6 for value in values):
        return texts
    return [re.sub(r"\.?0*e(.*)", lambda found: f"e{int(found[1])}", f"{value:.3e}") if value else "0"
            for value in values]  # fmt: skip


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
