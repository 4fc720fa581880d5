"""The figure of a search with several objectives: the metric against each other objective, with the Pareto front."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nlu.display.canvas import BEST_COLOUR, TITLE, thousands
from nlu.display.trials import Summary, TrialRow

PANEL_INCHES = (7.0, 5.2)
OTHER_COLOUR, INFEASIBLE_COLOUR = "#0072b2", "#a0a0a0"
MAX_NAMED = 12
"""trials of the front whose numbers are written beside their marks"""


def draw_front(summary: Summary) -> Figure | None:
    """Draw a panel for each objective besides the metric; None if no complete trial has them.

    With two objectives a line joins the front: a trial beyond it would dominate one of its trials. Trials that break a
    constraint are crosses.
    """
    shown = [trial for trial in summary.trials if trial.state == "complete" and trial.value is not None]
    shown = [trial for trial in shown if summary.objectives.keys() <= trial.measured.keys()]
    if not summary.objectives or not shown:
        return None
    figure = Figure((PANEL_INCHES[0] * len(summary.objectives), PANEL_INCHES[1]), layout="constrained")
    panels = figure.subplots(1, len(summary.objectives), sharey=True, squeeze=False)[0]
    for axes, (name, more) in zip(panels, summary.objectives.items(), strict=True):
        _draw_panel(axes, summary, shown, name, more)
    panels[0].set_ylabel(f"{summary.metric} ({_better(summary.maximize)})")
    panels[0].set_title(f"{summary.name}  (front: {len(summary.front)} of {len(shown)} complete trials)", **TITLE)
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _better(more: bool) -> str:
    return "more is better" if more else "less is better"


def _draw_panel(axes: Axes, summary: Summary, shown: list[TrialRow], name: str, more: bool) -> None:
    ahead = [trial for trial in shown if trial.number in summary.front]
    if len(summary.objectives) == 1 and ahead:
        points = sorted((trial.measured[name], trial.value or 0.0) for trial in ahead)
        # Going to worse places of this objective, the best value so far stays until a better one comes.
        axes.step(
            *zip(*points, strict=True), where="pre" if more else "post", color=BEST_COLOUR, linewidth=1.4, zorder=2
        )
    labelled = set()
    for trial in shown:
        is_ahead = trial.number in summary.front
        kind = "front" if is_ahead else "infeasible" if trial.broken else "dominated"
        colour = {"front": BEST_COLOUR, "infeasible": INFEASIBLE_COLOUR, "dominated": OTHER_COLOUR}[kind]
        axes.plot(
            [trial.measured[name]],
            [trial.value or 0.0],
            "x" if trial.broken else "o",
            markersize=7 if is_ahead else 5.8,
            color=colour,
            markerfacecolor=colour if is_ahead else "none",
            label=None if kind in labelled else kind,
            zorder=4 if is_ahead else 3,
            gid=f"trial-{trial.number}",
        )
        labelled.add(kind)
    for trial in ahead[:MAX_NAMED]:
        axes.annotate(
            str(trial.number),
            (trial.measured[name], trial.value or 0.0),
            xytext=(6, 5),
            textcoords="offset points",
            color=BEST_COLOUR,
            fontsize=9,
        )
    axes.set_xlabel(f"{name} ({_better(more)})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    if max(trial.measured[name] for trial in shown) >= 1000:
        thousands(axes.xaxis)
    axes.margins(0.08)
