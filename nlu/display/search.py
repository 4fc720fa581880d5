"""Figures of a search (values, reports of each trial, parameters, importances), and the page that shows them."""

import html
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nlu.display.canvas import (
    BEST_COLOUR,
    SIZE_INCHES,
    STYLE,
    TITLE,
    new_figure,
    save_figure,
    styled,
    svg_of,
    thousands,
)
from nlu.display.decisions import Insight, decisions_note, decisions_table
from nlu.display.front import draw_front
from nlu.display.page import part, section, write_page
from nlu.display.search_axes import place_of, ticks_of
from nlu.display.search_maps import draw_slices
from nlu.display.tables import count_text, metric_text
from nlu.display.trials import Summary, TrialRow, duration_text, front_line, infeasible_line, written
from nlu.storage.files import plain

INCHES_A_PARAMETER = 1.5
MAX_BARS = 20
FIGURES = ("front", "history", "intermediate", "parallel", "slices", "importances")
MAX_STEPS = 200
"""most points of a curve; longer ones are thinned but keep their last point"""
POINTER_WIDTH = 10.0
"""width of the invisible line around a curve that a pointer can rest on"""
COLOURS = {"complete": "#0072b2", "paused": "#56b4e9", "pruned": "#a0a0a0", "running": "#e69f00", "waiting": "#e69f00"}

FAILED_COLOUR = "#7a1f1f"
SHADES = "Blues"
LEGENDS_OUTSIDE = {**STYLE, "legend.frameon": False}
"""the style of figures whose legend stands beside the axes"""
AFTER_SECTIONS = """\
<div id="tip" role="status" hidden></div>
<noscript><p>The table is made by a script in this page; trials.tsv beside it holds the same numbers.</p></noscript>
<script type="application/json" id="data">$data</script>
<script>
$script</script>
"""
NOTHING = {
    "front": '<p class="remark">No complete trial has been measured.</p>',
    "history": '<p class="remark">No trial has reported a value.</p>',
    "intermediate": '<p class="remark">No trial has reported a value.</p>',
    "parallel": '<p class="remark">There is no trial with parameters and a value.</p>',
    "slices": '<p class="remark">There is no trial with parameters and a value.</p>',
    "importances": "",
}
"""what the page shows instead of a figure that would be empty"""


def draw_figures(summary: Summary, insight: Insight) -> dict[str, Figure]:
    """Draw the figures of `FIGURES`, as far as they have something to show."""
    valued = [trial for trial in summary.trials if trial.value is not None]
    found: dict[str, Figure] = {}
    with styled(LEGENDS_OUTSIDE):
        if (front := draw_front(summary)) is not None:
            found["front"] = front
        if valued:
            found["history"] = _history(summary, valued)
        if any(trial.steps for trial in valued):
            found["intermediate"] = _intermediate(summary)
        if valued and summary.params:
            found["parallel"] = _parallel(summary, valued)
        further = {
            "slices": draw_slices(summary, insight.importances),
            "importances": _importances(insight.importances) if insight.importances else None,
        }
    return found | {name: figure for name, figure in further.items() if figure is not None}


def write_figures(folder: Path, figures: Mapping[str, Figure]) -> list[Path]:
    """Write each figure as NAME.png, and remove figures of an earlier call that are not among these."""
    for name in FIGURES:
        # A continued search may have lost what a figure showed, and an old file would show another state.
        if name not in figures:
            (folder / f"{name}.png").unlink(missing_ok=True)
    return [save_figure(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _figure(size_inches: tuple[float, float] = SIZE_INCHES) -> tuple[Figure, Axes]:
    return new_figure(size_inches, layout="constrained", style=LEGENDS_OUTSIDE)


def _finish(axes: Axes, summary: Summary, xlabel: str) -> None:
    axes.set_title(f"{summary.name}  ({summary.counts})", **TITLE)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(summary.metric)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    thousands(axes.xaxis)


def _history(summary: Summary, valued: list[TrialRow]) -> Figure:
    figure, axes = _figure()
    for state, colour in COLOURS.items():
        for place, trial in enumerate(trial for trial in valued if trial.state == state):
            axes.plot(
                [trial.number],
                [trial.value or 0.0],
                "o",
                markersize=5.8,
                label=None if place else state,
                zorder=3,
                markerfacecolor="none" if state == "pruned" else colour,
                markeredgecolor=colour,
                gid=f"trial-{trial.number}",
            )
    done = [trial for trial in valued if trial.state == "complete" and not trial.broken]
    if summary.best and done:
        pick = np.maximum if summary.maximize else np.minimum
        so_far = pick.accumulate(np.array([trial.value for trial in done], dtype=float))
        last = max(trial.number for trial in summary.trials)
        # The line ends at the last trial, which may be running or pruned.
        places, heights = [*(trial.number for trial in done), last], [*so_far, so_far[-1]]
        axes.step(places, heights, where="post", color=BEST_COLOUR, linewidth=1.4, label="best so far")
        _mark_best(axes, summary, summary.best.number, len(summary.trials) - 1)
    for place, number in enumerate(trial.number for trial in summary.trials if trial.state == "failed"):
        axes.plot(
            [number],
            [0.015],
            "x",
            markersize=5.5,
            color=FAILED_COLOUR,
            transform=axes.get_xaxis_transform(),
            label=None if place else "failed",
            gid=f"trial-{number}",
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
        f"{summary.best.value:.4g} (trial {summary.best.number})",
        (x, summary.best.value),
        xytext=(-10 if left else 10, 9 if summary.maximize else -16),
        textcoords="offset points",
        ha="right" if left else "left",
        color=BEST_COLOUR,
        fontsize=9,
    )


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
            steps,
            values,
            gid=f"trial-{trial.number}",
            color=colour,
            linewidth=2.0 if is_best else 1.1,
            alpha=1.0 if is_best else strength_of(summary),
            marker="o",
            markersize=4 if len(steps) <= 12 and trial.state != "pruned" else 0,
            zorder=4 if is_best else 2,
            # One entry in the legend for each kind of curve.
            label=None if label in labelled else label,
        )
        labelled.add(label)
        if trial.state == "pruned":
            axes.plot(steps[-1:], values[-1:], "x", markersize=6, color=colour, zorder=3, gid=f"trial-{trial.number}")
    _finish(axes, summary, "examples seen")
    axes.set_xlim(left=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _thinned(steps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    # Rounded up.
    stride = -(-len(steps) // MAX_STEPS)
    return [*steps[:-1:stride], *steps[-1:]] if stride > 1 else steps


def _draw_pointer_target(axes: Axes, x: Sequence[float], y: Sequence[float], number: int) -> None:
    # Drawn under the curve: a pointer cannot hit a line of one pixel.
    axes.plot(x, y, color="#ffffff", alpha=0.0, linewidth=POINTER_WIDTH, gid=f"trial-{number}")


def strength_of(summary: Summary) -> float:
    """Return the opacity of a curve, lower for more trials so that dense regions stay visible."""
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
    # Later lines cover earlier ones, so the best is drawn last.
    for trial in sorted(valued, key=lambda trial: (trial.number == best, trial.state == "complete")):
        height = float(shade(scores[trial.number]))
        # The best is dark in both directions.
        strength = height if summary.maximize else 1 - height
        heights = [*(place_of(param, trial.params) for param in params), height]
        done, is_best = trial.state == "complete", trial.number == best
        _draw_pointer_target(axes, range(len(heights)), heights, trial.number)
        axes.plot(
            range(len(heights)),
            heights,
            gid=f"trial-{trial.number}",
            color=BEST_COLOUR if is_best else colormaps[SHADES](0.3 + 0.7 * strength),
            linewidth=2.2 if is_best else 1.6 if done else 0.9,
            alpha=1.0 if is_best else strength_of(summary),
            linestyle="-" if done else (0, (4, 3)),
            solid_joinstyle="round",
        )
    for place, param in enumerate(params):
        _draw_axis(axes, place, ticks_of(param), has_absent=any(param.name not in trial.params for trial in valued))
    marks = [value for value in MaxNLocator(5).tick_values(low, high) if low <= value <= high] if high > low else [low]
    _draw_axis(axes, len(params), [(float(shade(value)), f"{value:.4g}") for value in marks], has_absent=False)
    names = [*(param.name for param in params), summary.metric]
    axes.set_xticks(range(len(names)), [name.replace(".", ".\n") for name in names], fontsize=9)
    axes.tick_params(axis="x", length=0, pad=10)
    axes.set_yticks([])
    axes.set_ylim(-0.14, 1.04)
    axes.set_xlim(-0.35, len(params) + 0.6)
    best_words = "" if best is None else f"red: the best, trial {best}; "
    title = f"{summary.name}  ({best_words}the darker the better; dashed: not complete)"
    axes.set_title(title, **TITLE)
    return figure


def _draw_axis(axes: Axes, place: int, ticks: list[tuple[float, str]], has_absent: bool) -> None:
    axes.plot([place, place], [0, 1], color="#888888", linewidth=1.0, zorder=5)
    for height, text in [*ticks, *[(-0.1, "not set")] * has_absent]:
        axes.plot([place - 0.015, place], [height, height], color="#888888", linewidth=1.0, zorder=5)
        axes.annotate(
            text,
            (place, height),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=9,
            va="center",
            zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0},
        )


def _importances(importances: Mapping[str, float]) -> Figure:
    shown = list(importances.items())[:MAX_BARS]
    figure, axes = _figure((SIZE_INCHES[0], max(2.4, 0.5 * len(shown) + 1.2)))
    names, values = zip(*shown[::-1], strict=True)
    bars = axes.barh(names, values, color=COLOURS["complete"], height=0.6)
    axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=4, fontsize=9)
    axes.grid(False, axis="y")
    axes.margins(x=0.1)
    axes.set_xlabel("share of what the parameters explain")
    return figure


def write_search_page(
    path: Path,
    summary: Summary,
    figures: Mapping[str, Figure],
    insight: Insight,
    command: str | None,
    *,
    as_of_s: float | None = None,
) -> None:
    """Write the page of a search, whose script makes the table and highlights the trial under the pointer.

    `command` runs the best trial. `as_of_s`: the search has not ended, and its trials are as they were at this time, in
    seconds since 1970; the page says so.
    """
    shown = {name: svg_of(name, figures[name]) if name in figures else NOTHING.get(name, "") for name in FIGURES}
    data = json.dumps(plain(_data(summary)), ensure_ascii=False, separators=(",", ":"))
    goals = [line for line in (front_line(summary), infeasible_line(summary)) if line]
    sections = [
        *([section(shown["front"], "Objectives", note=goals[0], name="front")] if summary.objectives else []),
        section(shown["history"], "Value of each trial", name="history", classes=""),
        section(shown["intermediate"], "Trials on their way", name="intermediate", classes=""),
        section(f'<div class="scroll">{shown["parallel"]}</div>', "Parameters", name="parallel"),
        section(shown["slices"], "Score against each parameter", name="slices"),
        section(shown["importances"], "Importances", note=insight.importances_note, name="importances"),
        section(
            '<div class="scroll"><table></table></div>', "Trials", note="A click on a heading sorts.", name="trials"
        ),
    ]
    if insight.decisions:
        table = decisions_table(insight.decisions, summary.metric)
        sections.append(section(table, "Decisions", note=decisions_note(insight.decisions), name="decisions"))
    after = Template(AFTER_SECTIONS).substitute(
        script=part("page.js"),
        # A text must not end the script element or begin a comment.
        data=data.replace("<", "\\u003c"),
    )
    counts = "; ".join([summary.counts, *goals[bool(summary.objectives) :]])
    write_page(
        path, summary.name, counts, sections, look="search", facts=_facts(summary, command, as_of_s), after=after
    )


def _facts(summary: Summary, command: str | None, as_of_s: float | None) -> str:
    best = summary.best
    spent = sum(trial.examples or 0 for trial in summary.trials)
    wall_s = sum(trial.wall_s or 0.0 for trial in summary.trials)
    facts = [
        (f"best {summary.metric}", f"{metric_text(best.value)} (trial {best.number})" if best else "no complete trial"),
        ("examples seen", count_text(spent)),
        ("time of all trials", duration_text(wall_s)),
        *([] if as_of_s is None else [("the search has not ended; as of", _time_text(as_of_s))]),
    ]
    lines = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    text = f'<dl class="facts">{lines}</dl>'
    return text + (f"<pre class='command'>{html.escape(command)}</pre>" if command else "")


def _time_text(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(time_s))


def _data(summary: Summary) -> dict[str, object]:
    return {
        "metric": summary.metric,
        "maximize": summary.maximize,
        "best": summary.best.number if summary.best else None,
        "params": [param.name for param in summary.params],
        **({"quantities": summary.quantities, "front": summary.front} if summary.quantities else {}),
        "trials": [_trial(trial, summary) for trial in summary.trials],
    }


def _trial(trial: TrialRow, summary: Summary) -> dict[str, object]:
    choices = {param.name for param in summary.params if param.scale == "choice"}
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "sd": trial.sd,
        "examples": trial.examples,
        "wall_s": trial.wall_s,
        "wall": duration_text(trial.wall_s),
        "error": trial.error,
        **({"measured": trial.measured, "broken": trial.broken} if summary.quantities else {}),
        "params": {name: written(value) if name in choices else value for name, value in trial.params.items()},
    }
