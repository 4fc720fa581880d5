"""Figures of a search over its parameters: the score against each one, and over pairs of them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nlu.display.canvas import BEST_COLOUR, DOTS_PER_INCH, TITLE
from nlu.display.search_axes import place_of, ticks_of
from nlu.display.trials import SearchedKey, Summary, TrialRow

MAX_SLICES = 12
COLUMNS = 4
SLICE_INCHES = (2.9, 2.7)
MAX_TICKS = 5
MARKS = {"complete": "o", "paused": "s", "running": "D", "waiting": "D", "pruned": "v"}
HOLLOW = ("running", "waiting", "pruned")
FAILED_COLOUR = "#7a1f1f"
SHADES = ListedColormap(colormaps["viridis_r"](np.linspace(0.2, 1.0, 256)), "shades")
"""without the lightest ones, which cannot be seen on white"""
LEGEND_COLOUR = "#4c566a"
JITTER = 0.28
"""how far the trials of one choice are spread, as a share of its column"""


def draw_slices(summary: Summary, importances: Mapping[str, float]) -> Figure | None:
    """Draw the value of each trial against each parameter, the most important ones first, at most `MAX_SLICES`.

    The shape of a mark is the state of the trial. Its color are the examples that it saw, or its number if all saw the
    same. Failed trials stand at the foot. None without a value or a parameter.
    """
    valued = [trial for trial in summary.trials if trial.value is not None]
    shown = _by_importance(summary.params, importances)[:MAX_SLICES]
    if not valued or not shown:
        return None
    lines = math.ceil(len(shown) / COLUMNS)
    columns = math.ceil(len(shown) / lines)
    size = (max(10.0, SLICE_INCHES[0] * columns) + 0.9, SLICE_INCHES[1] * lines + 0.6)
    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    shade, label = _shade(valued)
    # The longest trials are drawn last, over the others.
    ordered = sorted(valued, key=lambda trial: (_amount(trial, label), trial.number))
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set_axis_off()
            continue
        _draw_slice(axes, summary, shown[place], ordered, shade, label)
        if place % columns == 0:
            axes.set_ylabel(summary.metric)
    marks = LogLocator(subs=(1, 2, 5)) if isinstance(shade, LogNorm) else MaxNLocator(6, integer=True)
    bar = figure.colorbar(
        ScalarMappable(shade, SHADES),
        ax=grid,
        label=label,
        format=FuncFormatter(_whole),
        ticks=marks,
        aspect=30,
        pad=0.01,
    )
    bar.ax.yaxis.set_minor_locator(NullLocator())
    _legend_of_states(figure, summary)
    return figure


def _by_importance(params: Sequence[SearchedKey], importances: Mapping[str, float]) -> list[SearchedKey]:
    return sorted(params, key=lambda param: -importances.get(param.name, 0.0))


def _shade(valued: Sequence[TrialRow]) -> tuple[Normalize, str]:
    """Return the scale of the colors, and what they mean."""
    seen = [trial.examples for trial in valued if trial.examples]
    if len(set(seen)) > 1 and len(seen) == len(valued):
        wide = max(seen) > 10 * min(seen)
        return (LogNorm if wide else Normalize)(min(seen), max(seen)), "examples seen"
    numbers = [trial.number for trial in valued]
    return Normalize(min(numbers), max(max(numbers), min(numbers) + 1)), "trial"


def _amount(trial: TrialRow, label: str) -> int:
    return (trial.examples or 0) if label == "examples seen" else trial.number


def _whole(value: float, _: object = None) -> str:
    return f"{value:,.0f}"


def _draw_slice(
    axes: Axes, summary: Summary, param: SearchedKey, ordered: Sequence[TrialRow], shade: Normalize, label: str
) -> None:
    with_it = [trial for trial in ordered if param.name in trial.params]
    for state, mark in MARKS.items():
        own = [trial for trial in with_it if trial.state == state]
        if not own:
            continue
        # One collection for each state: a mark of its own for each trial would make the page large.
        colours = ScalarMappable(shade, SHADES).to_rgba(np.array([_amount(trial, label) for trial in own])).tolist()
        axes.scatter(
            [_spread(param, trial) for trial in own],
            [trial.value or 0.0 for trial in own],
            s=30,
            marker=mark,
            facecolors="none" if state in HOLLOW else colours,
            edgecolors=colours if state in HOLLOW else "#ffffff",
            linewidths=1.3 if state in HOLLOW else 0.5,
            gid=f"trials-{'-'.join(str(trial.number) for trial in own)}",
            zorder=3,
        )
    if (best := summary.best) is not None and param.name in best.params:
        place = (_spread(param, best), best.value or 0.0)
        axes.scatter(*place, s=95, facecolors="none", edgecolors=BEST_COLOUR, linewidths=1.5, zorder=4)
    failed = [trial for trial in summary.trials if trial.state == "failed" and param.name in trial.params]
    if failed:
        axes.scatter(
            [_spread(param, trial) for trial in failed],
            [0.02] * len(failed),
            s=26,
            marker="x",
            color=FAILED_COLOUR,
            transform=axes.get_xaxis_transform(),
            gid=f"trials-{'-'.join(str(trial.number) for trial in failed)}",
            zorder=3,
        )
    _finish_axis(axes, param, "x")
    axes.margins(y=0.08)
    axes.set_title(param.name, **TITLE)


def _spread(param: SearchedKey, trial: TrialRow) -> float:
    """Return the place of a trial on the axis of a parameter; trials of one choice stand side by side."""
    place = place_of(param, trial.params)
    if param.scale != "choice":
        return place
    # Evenly, by the golden ratio, and the same whenever the page is made.
    return place + JITTER * ((trial.number * 0.618034) % 1 - 0.5) / len(param.choices)


def _finish_axis(axes: Axes, param: SearchedKey, name: str) -> None:
    axis = axes.xaxis if name == "x" else axes.yaxis
    ticks = ticks_of(param)
    stride = 1 if param.scale == "choice" else max(1, math.ceil((len(ticks) - 1) / (MAX_TICKS - 1)))
    kept = ticks if len(ticks) <= MAX_TICKS or param.scale == "choice" else [*ticks[:-1:stride], ticks[-1]]
    if len(kept) > 2 and param.scale != "choice" and kept[-1][0] - kept[-2][0] < 0.15:
        del kept[-2]
    is_crowded = name == "x" and param.scale == "choice" and sum(len(text) for _, text in kept) > 26
    axis.set_ticks([place for place, _ in kept], [text for _, text in kept])
    axis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x" if name == "x" else "y", labelsize=9)
    if is_crowded:
        axes.tick_params(axis="x", rotation=25)
    (axes.set_xlim if name == "x" else axes.set_ylim)(-0.04, 1.04)


def _legend_of_states(figure: Figure, summary: Summary) -> None:
    states = {trial.state for trial in summary.trials if trial.value is not None or trial.state == "failed"}
    found = [
        Line2D(
            [], [], linestyle="none", marker=mark, markersize=6, label=state, markeredgecolor=LEGEND_COLOUR,
            markerfacecolor="none" if state in HOLLOW else LEGEND_COLOUR,
        )
        for state, mark in MARKS.items() if state in states
    ]  # fmt: skip
    if "failed" in states:
        found.append(Line2D([], [], linestyle="none", marker="x", color=FAILED_COLOUR, label="failed"))
    if summary.best is not None:
        label = f"best (trial {summary.best.number})"
        ring = Line2D([], [], linestyle="none", marker="o", label=label, markersize=9, markeredgewidth=1.5)
        ring.set_markerfacecolor("none")
        ring.set_markeredgecolor(BEST_COLOUR)
        found.append(ring)
    figure.legend(handles=found, loc="outside upper left", ncols=len(found), fontsize=9)
