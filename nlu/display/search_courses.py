"""Figures of a search over examples seen: how the order of its trials changes, and the curves that it predicts."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from nlu.display.canvas import DOTS_PER_INCH, SET_COLOURS, TITLE, thousands
from nlu.display.insight import Forecast, Ranking
from nlu.display.search_maps import HOLLOW, MARKS
from nlu.display.trials import Summary, TrialRow

SIZE_INCHES = (11.0, 5.0)
OTHERS = "#c4c8ce"
MAX_RANKED = 7
"""trials whose ranks have a color"""
MAX_LINEAR = 12
"""most ranks that are equally far apart"""
LINE_POINTS = 11.0
"""the height of a line of labels"""
MAX_POINTS = 40
"""most points of a curve of another trial"""
SIGNS = {"complete": "●", "paused": "■", "running": "◇", "waiting": "◇", "pruned": "▽"}
"""the shapes of `MARKS` in a text"""
COLOURS = (*SET_COLOURS, "#4c566a")


def draw_ranks(summary: Summary, ranking: Ranking | None) -> Figure | None:
    """Draw the rank of each trial over examples seen, and how well each order predicts the one at the end.

    Of trials that saw equally many examples at the end, the best ones have a color. None without a ranking.
    """
    if ranking is None:
        return None
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1.0])
    shown = _leading(ranking)
    heights = _label_heights(ranking, shown)
    for number, rank_S in sorted(ranking.rank_S_by_trial.items(), key=lambda pair: pair[0] in shown):
        colour = COLOURS[shown.index(number)] if number in shown else OTHERS
        steps = range(len(rank_S))
        left.plot(
            steps, rank_S, color=colour, linewidth=2.0 if number in shown else 0.9, marker="o",
            markersize=5 if number in shown else 3, zorder=3 if number in shown else 2, gid=f"trial-{number}",
        )  # fmt: skip
        if number in shown:
            left.annotate(
                f"trial {number}", (len(rank_S) - 1, rank_S[-1]), xytext=(7, heights[number]),
                textcoords="offset points", va="center", fontsize=9, color=colour,
            )  # fmt: skip
    left.set_ylabel("rank (1 is the best so far)")
    _rank_axis(left, max(rank for rank_S in ranking.rank_S_by_trial.values() for rank in rank_S))
    left.set_title(f"{summary.name}  (each trial among those that saw as many examples)", **TITLE)
    _examples_axis(left, ranking.examples_S, 420.0, room=0.6)
    _draw_correlations(right, ranking)
    return figure


def _rank_axis(axes: Axes, lowest: float) -> None:
    """Mark ranks from the best one at the top down; among many, the best ones have more room."""
    if lowest > MAX_LINEAR:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
        marks = [mark for mark in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if mark <= lowest]
    else:
        marks = list(range(1, math.ceil(lowest) + 1))
    axes.set_yticks(marks, [str(mark) for mark in marks])
    axes.set_ylim(lowest * 1.1 if lowest > MAX_LINEAR else lowest + 0.5, 0.85 if lowest > MAX_LINEAR else 0.5)


def _leading(ranking: Ranking) -> list[int]:
    """Return the trials that get a color: the longest ones, and of equally long ones the best."""
    found = sorted(
        ranking.rank_S_by_trial.items(), key=lambda pair: (-len(pair[1]), pair[1][-1] if pair[1] else 0, pair[0])
    )
    fewest = 2 if len(found[0][1]) > 1 else 1
    return [number for number, rank_S in found if len(rank_S) >= fewest][:MAX_RANKED]


def _label_heights(ranking: Ranking, shown: Sequence[int]) -> dict[int, float]:
    """Return by trial how far above its last rank its label stands, in points: those of equal trials are stacked."""
    found: dict[int, float] = {}
    for number in shown:
        rank_S = ranking.rank_S_by_trial[number]
        own = (len(rank_S), rank_S[-1])
        tied = [other for other in shown if (len(found_S := ranking.rank_S_by_trial[other]), found_S[-1]) == own]
        found[number] = LINE_POINTS * ((len(tied) - 1) / 2 - tied.index(number))
    return found


def _examples_axis(axes: Axes, examples_S: Sequence[int], width_points: float, room: float = 0.0) -> None:
    texts = [f"{examples:,}" for examples in examples_S]
    axes.set_xticks(range(len(examples_S)), texts, fontsize=9)
    # About 5 points for a digit, and a gap.
    if sum(5.0 * len(text) + 8.0 for text in texts) > width_points:
        axes.tick_params(axis="x", rotation=25)
    axes.set_xlim(-0.3, len(examples_S) - 0.7 + room)
    axes.set_xlabel("examples seen")


def _draw_correlations(axes: Axes, ranking: Ranking) -> None:
    correlations = ranking.correlation_S
    if not correlations:
        axes.set_axis_off()
        words = "too few trials saw equally many\nexamples to compare their order"
        axes.text(0.5, 0.5, words, ha="center", color="#777777", transform=axes.transAxes)
        return
    known = [(place, value) for place, value in enumerate(correlations) if math.isfinite(value)]
    axes.plot([place for place, _ in known], [value for _, value in known], color="#0072b2", marker="o", linewidth=1.8)
    for place, value in known:
        axes.annotate(
            f"{value:.2f}", (place, value), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9
        )
    axes.axhline(0, color="#888888", linewidth=0.8)
    least = min((value for _, value in known), default=0.0)
    axes.set_ylim(min(-0.1, least - 0.15), 1.15)
    axes.set_ylabel(f"rank correlation with {ranking.end:,} examples")
    axes.set_title(f"of the {ranking.count} trials that saw {ranking.end:,} examples", **TITLE)
    _examples_axis(axes, ranking.examples_S[: len(correlations)], 220.0, room=0.1)


def draw_curves(summary: Summary, forecasts: Sequence[Forecast]) -> Figure | None:
    """Draw predicted curves with their intervals over what the trials reported, and the intervals at the end.

    The curves of other trials are gray. None without a prediction.
    """
    if not forecasts:
        return None
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2.2, 1.0], sharey=True)
    trials = {trial.number: trial for trial in summary.trials}
    shown = {forecast.trial for forecast in forecasts}
    end = max(forecast.examples_E[-1] for forecast in forecasts)
    for trial in summary.trials:
        if trial.number not in shown and trial.state != "failed" and (points := _first_fold(trial, end)):
            every = -(-len(points) // MAX_POINTS)
            steps, values = zip(*[*points[:-1:every], points[-1]], strict=True)
            single = {"marker": "o", "markersize": 2.5} if len(steps) == 1 else {}
            left.plot(steps, values, color=OTHERS, linewidth=0.9, zorder=1, gid=f"trial-{trial.number}", **single)  # type: ignore[arg-type]
    for place, forecast in enumerate(forecasts):
        colour, trial = COLOURS[place % len(COLOURS)], trials[forecast.trial]
        _draw_forecast(left, forecast, _first_fold(trial, end), colour)
        mean, low, high = forecast.mean_E[-1], forecast.low_E[-1], forecast.high_E[-1]
        right.plot([place, place], [low, high], color=colour, linewidth=3.0, alpha=0.45, gid=f"trial-{trial.number}")
        fill = "#ffffff" if trial.state in HOLLOW else colour
        right.plot(
            [place],
            [mean],
            MARKS[trial.state],
            color=colour,
            markersize=6,
            markerfacecolor=fill,
            gid=f"trial-{trial.number}",
        )
    left.set_xlim(0, end * 1.01)
    left.set_xlabel("examples seen")
    left.set_ylabel(summary.metric)
    left.set_ylim(*_heights(forecasts, [_first_fold(trials[number], end) for number in shown]))
    thousands(left.xaxis)
    left.set_title(f"{summary.name}  (dots: observed; lines: predicted, with intervals of 80 %)", **TITLE)
    if summary.best is not None and summary.best.value is not None:
        right.axhline(summary.best.value, color="#888888", linewidth=1.0, linestyle=(0, (4, 4)), zorder=1)
    right.set_xticks(range(len(forecasts)), [str(forecast.trial) for forecast in forecasts])
    right.set_xlim(-0.6, len(forecasts) - 0.4)
    states = {trials[forecast.trial].state for forecast in forecasts}
    signs = ", ".join(f"{sign} {state}" for state, sign in SIGNS.items() if state in states)
    right.set_xlabel(f"trial ({signs})")
    right.set_title(f"predicted after {end:,.0f} examples", **TITLE)
    return figure


def _first_fold(trial: TrialRow, end: float) -> list[tuple[int, float]]:
    """Return the reports of a trial up to the end of what is predicted; later ones are means over folds."""
    return [(at, value) for at, value in trial.steps if at <= 1.02 * end]


def _draw_forecast(axes: Axes, forecast: Forecast, points: Sequence[tuple[int, float]], colour: str) -> None:
    group = f"trial-{forecast.trial}"
    axes.plot(forecast.examples_E, forecast.mean_E, color=colour, linewidth=1.4, zorder=3, gid=group)
    axes.fill_between(
        forecast.examples_E, forecast.low_E, forecast.high_E, color=colour, alpha=0.09, linewidth=0, zorder=2, gid=group
    )
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, "o", color=colour, markersize=3.5 if len(points) <= 40 else 2, zorder=4, gid=group)


def _heights(
    forecasts: Sequence[Forecast], points: Sequence[Sequence[tuple[int, float]]]
) -> tuple[float | None, float | None]:
    """Return the bounds of the values: what the shown trials observed and predict, without the early predictions."""
    seen = [value for own in points for _, value in own]
    ends = [bound for forecast in forecasts for bound in (forecast.low_E[-1], forecast.high_E[-1])]
    found = np.array([*seen, *ends])
    margin = 0.06 * float(np.ptp(found))
    return (float(found.min()) - margin, float(found.max()) + margin) if margin else (None, None)
