"""The figures of a search, which Optuna draws, and the page that shows them above the table of its trials."""

import copy
import html
import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from matplotlib import rc_context
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from nlu.display.canvas import svg_of
from nlu.display.console_tables import Column
from nlu.display.page import html_table, section, write_page
from nlu.search.trial_steps import is_paused
from nlu.search.trials import Summary, columns_of

log = logging.getLogger(__name__)

SIZE_INCHES = (7.0, 4.5)
MOST_NAMED = 12
"""trials that a legend names"""
MOST_OBJECTIVES = 3
"""with the metric, of which Optuna draws the front"""
LEAST_TRIALS = 10
"""complete trials from which importances are computed: of fewer they are chance"""
PIXELS_PER_INCH = 72
"""on a page at least; a wider figure is scrolled, so that its letters stay readable"""
TITLES = {
    "front": "Objectives",
    "history": "Value of each trial",
    "intermediate": "Trials on their way",
    "slices": "Score against each parameter",
    "importances": "Importances (PED-ANOVA)",
}


def draw_figures(study: optuna.Study, summary: Summary) -> dict[str, Figure]:
    """Draw the figures of `TITLES`, as far as they have something to show."""
    from optuna.visualization import matplotlib as plots

    study = _with_paused(study)
    trials = study.get_trials(deepcopy=False)
    values = {trial.values[0] for trial in trials if trial.state == TrialState.COMPLETE}
    has_reports = any(trial.intermediate_values for trial in trials)
    of_values: dict[str, Any] = {"target_name": summary.metric}
    if summary.objectives:
        of_values["target"] = lambda trial: trial.values[0]
    wanted: dict[str, Callable[[], Any]] = {}
    if values and 1 < len(study.directions) <= MOST_OBJECTIVES:
        names = [summary.metric, *summary.objectives]
        wanted["front"] = lambda: plots.plot_pareto_front(study, target_names=names)
    if values:
        wanted["history"] = lambda: plots.plot_optimization_history(study, **of_values)
    if has_reports:
        wanted["intermediate"] = lambda: plots.plot_intermediate_values(study)
    if values and summary.params:
        wanted["slices"] = lambda: plots.plot_slice(study, **of_values)
    complete = sum(trial.state == TrialState.COMPLETE for trial in trials)
    # From equal values nothing follows.
    if len(values) > 1 and complete >= LEAST_TRIALS and summary.params:
        wanted["importances"] = lambda: plots.plot_param_importances(study, **of_values)
    drawn = {kind: _figure(kind, draw) for kind, draw in wanted.items()}
    return {kind: figure for kind, figure in drawn.items() if figure is not None}


def _with_paused(study: optuna.Study) -> optuna.Study:
    """Return a copy in memory whose paused trials are pruned ones: Optuna draws no reports of trials that wait."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = optuna.create_study(directions=study.directions, study_name=study.study_name)
    shown.add_trials(_ended(trial) if is_paused(trial) else trial for trial in study.get_trials(deepcopy=False))
    return shown


def _ended(trial: FrozenTrial) -> FrozenTrial:
    trial = copy.copy(trial)
    trial.state, trial.datetime_complete = TrialState.PRUNED, trial.datetime_start
    return trial


def _figure(name: str, draw: Callable[[], Any]) -> Figure | None:
    """Return a figure of Optuna; None, with a warning, for one that cannot be drawn."""
    import matplotlib.pyplot as plt

    # Optuna draws with pyplot, which would otherwise look for a screen, and changes its style for all later figures.
    plt.switch_backend("agg")
    # It explains an axis of texts that look like numbers, as choices of a parameter may.
    logging.getLogger("matplotlib.category").setLevel(logging.WARNING)
    try:
        with (
            rc_context({"figure.figsize": SIZE_INCHES, "figure.constrained_layout.use": True}),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            found = draw()
            # A figure of several parameters has several axes.
            figure: Figure = (found if hasattr(found, "figure") else found[0]).figure
            for axes in figure.axes:
                if len(axes.lines) > MOST_NAMED and (legend := axes.get_legend()) is not None:
                    legend.remove()
            figure.draw_without_rendering()
            # The layout is done: saving would warn again of parts that it leaves where they are.
            figure.set_layout_engine("none")
            return figure
    except Exception:
        # A search must not lose its numbers for a picture.
        log.warning("the figure %s is left out, since drawing it failed", name, exc_info=True)
        return None
    finally:
        plt.close("all")


def write_search_page(path: Path, summary: Summary, figures: Mapping[str, Figure], command: str | None) -> None:
    """Write the page of a search; `command` runs the best trial."""
    sections = [
        section(
            f'<div class="scroll"><div style="min-width: {figure.get_figwidth() * PIXELS_PER_INCH:.0f}px">'
            f"{svg_of(name, figure)}</div></div>",
            TITLES[name],
            name=name,
            # Of few parameters it is no wider than the others.
            classes="wide" if name == "slices" and len(summary.params) > 3 else "",
        )
        for name, figure in figures.items()
    ]
    columns = columns_of(summary, summary.ranked)
    if any(trial.error for trial in summary.trials):
        columns.append(Column("error", [trial.error for trial in summary.ranked], is_number=False))
    lines = list(zip(*(column.cells for column in columns), strict=True))
    table = html_table([(column.header, column.is_number) for column in columns], lines)
    sections.append(section(table, "Trials", note="trials.tsv has all digits.", name="trials"))
    facts = f"<pre class='command'>{html.escape(command)}</pre>" if command else ""
    write_page(path, summary.name, summary.counts, sections, facts=facts)
