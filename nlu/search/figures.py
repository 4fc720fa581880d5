"""The figures of a search, which Optuna draws, and the page that shows them above the table of its trials."""

import html
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from nlu.display.canvas import save_figure, svg_of
from nlu.display.page import html_table, section, write_page
from nlu.display.tables import Column, count_text, metric_text
from nlu.search.trials import Summary, columns_of, duration_text, front_line

if TYPE_CHECKING:
    from optuna import Study

log = logging.getLogger(__name__)

SIZE_INCHES = (7.0, 4.5)
MOST_NAMED = 12
"""trials that a legend names"""
MOST_OBJECTIVES = 3
"""with the metric, of which Optuna draws the front"""
TITLES = {
    "front": "Objectives",
    "history": "Value of each trial",
    "intermediate": "Trials on their way",
    "slices": "Score against each parameter",
    "importances": "Importances (PED-ANOVA)",
}


def draw_figures(study: "Study", summary: Summary) -> dict[str, Figure]:
    """Draw the figures of `TITLES`, as far as they have something to show."""
    from optuna.visualization import matplotlib as plots

    complete = [trial for trial in summary.trials if trial.state == "complete"]
    has_reports = any(trial.intermediate_values for trial in study.get_trials(deepcopy=False))
    has_several = len(study.directions) > 1
    of_values: dict[str, Any] = {"target_name": summary.metric}
    if has_several:
        of_values["target"] = lambda trial: trial.values[0]
    has_params = bool(complete and summary.params)
    wanted: dict[str, Callable[[], Any] | None] = {
        "front": (lambda: plots.plot_pareto_front(study, target_names=[summary.metric, *summary.objectives]))
        if complete and has_several and len(study.directions) <= MOST_OBJECTIVES
        else None,
        "history": (lambda: plots.plot_optimization_history(study, **of_values)) if complete else None,
        "intermediate": (lambda: plots.plot_intermediate_values(study)) if has_reports else None,
        "slices": (lambda: plots.plot_slice(study, **of_values)) if has_params else None,
        # From equal values, or from a single one, nothing follows.
        "importances": (lambda: plots.plot_param_importances(study, **of_values))
        if has_params and len({trial.value for trial in complete}) > 1
        else None,
    }
    drawn = {name: _figure(name, draw) for name, draw in wanted.items() if draw is not None}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _figure(name: str, draw: Callable[[], Any]) -> Figure | None:
    """Return a figure of Optuna; None, with a warning, for one that cannot be drawn."""
    import matplotlib.pyplot as plt

    # Optuna draws with pyplot, which would otherwise look for a screen, and changes its style for all later figures.
    plt.switch_backend("agg")
    try:
        with rc_context({"text.parse_math": False}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = draw()
            # A figure of several parameters has several axes.
            figure: Figure = (found if hasattr(found, "figure") else found[0]).figure
            _finish(name, figure)
            return figure
    except Exception:
        # A search must not lose its numbers for a picture.
        log.warning("the figure %s is left out, since drawing it failed", name, exc_info=True)
        return None
    finally:
        plt.close("all")


def _finish(name: str, figure: Figure) -> None:
    """Give a figure of Optuna its size, numbers without formulas, and no legend that is longer than it."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_minor_locator(NullLocator())
    for axes in figure.axes:
        if len(axes.lines) > MOST_NAMED and (legend := axes.get_legend()) is not None:
            legend.remove()
    # Optuna gives the slices their own size, one beside the other.
    if name != "slices":
        figure.set_size_inches(SIZE_INCHES)
        figure.set_layout_engine("tight")
    figure.draw_without_rendering()
    # The layout is done: saving would warn again of parts that it leaves where they are.
    figure.set_layout_engine("none")


def write_figures(folder: Path, figures: Mapping[str, Figure]) -> list[Path]:
    """Write each figure as NAME.png, and remove figures of an earlier call that are not among these."""
    for name in TITLES:
        # A continued search may have lost what a figure showed, and an old file would show another state.
        if name not in figures:
            (folder / f"{name}.png").unlink(missing_ok=True)
    return [save_figure(figure, folder / f"{name}.png") for name, figure in figures.items()]


def write_search_page(path: Path, summary: Summary, figures: Mapping[str, Figure], command: str | None) -> None:
    """Write the page of a search; `command` runs the best trial."""
    sections = [
        section(
            f'<div class="scroll">{svg_of(name, figure)}</div>',
            TITLES[name],
            note=front_line(summary) if name == "front" else "",
            name=name,
            classes="wide" if name == "slices" else "",
        )
        for name, figure in figures.items()
    ]
    columns = columns_of(summary, summary.ranked)
    if any(trial.error for trial in summary.trials):
        columns.append(Column("error", [trial.error for trial in summary.ranked], is_number=False))
    lines = list(zip(*(column.cells for column in columns), strict=True))
    table = html_table([(column.header, column.is_number) for column in columns], lines)
    sections.append(section(table, "Trials", note="trials.tsv has all digits.", name="trials"))
    write_page(path, summary.name, summary.counts, sections, facts=_facts(summary, command))


def _facts(summary: Summary, command: str | None) -> str:
    best = summary.best
    facts = [
        (f"best {summary.metric}", f"{metric_text(best.value)} (trial {best.number})" if best else "no complete trial"),
        ("examples seen", count_text(sum(trial.examples or 0 for trial in summary.trials))),
        ("time of all trials", duration_text(sum(trial.wall_s or 0.0 for trial in summary.trials))),
    ]
    lines = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    text = f'<dl class="facts">{lines}</dl>'
    return text + (f"<pre class='command'>{html.escape(command)}</pre>" if command else "")
