"""The summary of a search: a table, the best trial as an experiment, figures, and an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

TRIALS, PAGE, BEST = "trials.tsv", "index.html", Path("experiment") / "best.yaml"
FOLDER = "summary"


def write_summary(study: optuna.Study, folder: Path) -> None:
    """Print the trials of a study, best first, and write its summary into the folder of the search.

    `summary/trials.tsv` has a row for each trial, `summary/*.png` are figures, `summary/index.html` is a page that
    needs no other file, and `experiment/best.yaml` is the best trial as an experiment (`--config-dir FOLDER
    experiment=best`). A figure without content is left out, with a sentence in the page. The files of an earlier call
    are replaced; without a complete trial, best.yaml is removed.
    """
    from nlu.config.words import path_text
    from nlu.display.search import draw_figures, write_figures, write_search_page
    from nlu.display.tables import print_table
    from nlu.display.trials import print_trials, write_trials
    from nlu.sweeps.summary.best import best_command, write_best
    from nlu.sweeps.summary.trials import importances_of, read_summary

    summary = read_summary(study)
    importances, reason = importances_of(study)
    command = best_command(folder, summary) if write_best(summary, folder / BEST) else None
    write_trials(folder / FOLDER / TRIALS, summary, folder)
    figures = draw_figures(summary, importances)
    pictures = write_figures(folder / FOLDER, figures)
    write_search_page(folder / FOLDER / PAGE, summary, figures, reason, command)
    print_trials(summary)
    for path in [*pictures, folder / FOLDER / TRIALS, folder / FOLDER / PAGE]:
        print_table(path_text(path))
    if command:
        print_table("", f"the best trial again: {command}")
