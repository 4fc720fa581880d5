"""What is left of a sweep for a reader: a table, the best trial as an experiment, figures, one page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

TRIALS, PAGE, BEST = "trials.tsv", "index.html", Path("experiment") / "best.yaml"
FOLDER = "summary"


def write_summary(
    study: optuna.Study, folder: Path, *, metric: str | None = None, overrides: Sequence[str] = (),
    program: str = "python -m nlu.train",
) -> None:  # fmt: skip
    """Print the trials of a study, best first, and write them down in the folder of its sweep.

    `summary/trials.tsv` has a row a trial, `summary/*.png` are figures, `summary/index.html` is one page without any
    other file, and `experiment/best.yaml` is the best trial as an experiment of its own (`--config-dir FOLDER
    experiment=best`). Where no trial has completed there is no best.yaml and an older one goes; a figure that has
    nothing to show is left out, with a sentence in the page.

    `metric` names the value; without it the result of a run does. `overrides` are those that all trials share; they
    are asked only where the best trial's own folder does not tell what it ran. Writes anew whatever an earlier call
    left.
    """
    from nlu.config.words import path_text
    from nlu.display.search import draw_figures, write_figures, write_search_page
    from nlu.display.tables import print_table
    from nlu.display.trials import print_trials, write_trials
    from nlu.sweeps.summary.best import best_command, write_best
    from nlu.sweeps.summary.importance import importances_of
    from nlu.sweeps.summary.trials import read_summary

    summary = read_summary(study, metric)
    importances, reason = importances_of(study)
    command = write_best(summary, folder / BEST, overrides) and best_command(program, folder, summary, overrides)
    write_trials(folder / FOLDER / TRIALS, summary, folder)
    figures = draw_figures(summary, importances)
    pictures = write_figures(folder / FOLDER, figures)
    write_search_page(folder / FOLDER / PAGE, summary, figures, reason, command)
    print_trials(summary)
    for path in [*pictures, folder / FOLDER / TRIALS, folder / FOLDER / PAGE]:
        print_table(path_text(path))
    if command:
        print_table("", f"the best trial again: {command}")
