"""The summary of a search: its trials as a table, the decisions about them, figures, and an HTML page."""

import math
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.trial import FrozenTrial

from nlu.config.errors import UserError, print_error
from nlu.config.schema import Trainer
from nlu.config.sentences import path_text
from nlu.display.canvas import save_figure
from nlu.display.console_tables import print_table
from nlu.search.channel import OUTCOME, worked_s
from nlu.search.figures import TITLES, draw_figures, write_search_page
from nlu.search.goals import MEASURED, Goals, best_trials
from nlu.search.trial_steps import best_so_far, is_paused
from nlu.search.trials import Summary, TrialRow, decision_rows, print_trials, write_decisions, write_trials

FOLDER = "summary"
SAME_LENGTH = "trainer.max_duration=1.50ep"
"""the default length written otherwise: as the default itself it takes at least 60 steps, but not in a trial"""
TRIALS, DECISIONS, PAGE = "trials.tsv", "decisions.tsv", "index.html"
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
"""our words for optuna's states"""


def write_summary(study: optuna.Study, folder: Path) -> bool:
    """Print the trials of a study, best first, and write its summary into the folder of the search.

    `summary/trials.tsv` has a row for each trial, `summary/decisions.tsv` one for each decision about a trial,
    `summary/*.png` are figures, and `summary/index.html` is a page that needs no other file. A figure without content
    is left out. The files of an earlier call are replaced. A file that cannot be written is named on standard error,
    and the others are written; returns whether all are.
    """
    summary, place = read_summary(study), folder / FOLDER
    # First: a full disk must not keep the results from the user.
    print_trials(summary)
    commands = {number: command for number in summary.best if (command := rerun_command(folder, number))}
    for number, command in commands.items():
        which = f"trial {number} of the front" if summary.objectives else "the best trial"
        print_table(f"{which} again: {command}")
    figures = draw_figures(study, summary)
    files: dict[Path, Callable[[Path], object]] = {
        place / TRIALS: partial(write_trials, summary=summary),
        place / DECISIONS: partial(write_decisions, rows=decision_rows(study.get_trials(deepcopy=False))),
        place / PAGE: partial(
            write_search_page, summary=summary, figures=figures, command=next(iter(commands.values()), None)
        ),
    }
    for name in TITLES:
        # A continued search may have lost what a figure showed, and an old file would show another state.
        files[place / f"{name}.png"] = (
            partial(save_figure, figures[name]) if name in figures else partial(Path.unlink, missing_ok=True)
        )
    problems = []
    for path, write in files.items():
        try:
            write(path)
        except OSError as error:
            problems.append(f"{path_text(path)} is not written: {error.strerror or error}")
    if problems:
        again = shlex.join(["python", "-m", "nlu.report", "search", path_text(folder)])
        print_error(UserError(*problems, remedy=f"correct that, and write it again by {again}"))
        return False
    print_table(path_text(place / PAGE))
    return True


def rerun_command(folder: Path, number: int) -> str | None:
    """Return the command that trains a trial again; None for another program, and for a run that lies elsewhere."""
    own = folder / str(number)
    if not ((own / "overrides").is_file() and (own / "config.yaml").is_file()):
        return None
    duration = OmegaConf.select(OmegaConf.load(own / "config.yaml"), "trainer.max_duration")
    length = [SAME_LENGTH] if duration == Trainer.max_duration else []
    return shlex.join(["python", "-m", "nlu.train", "--rerun", path_text(own), *length])


def read_summary(study: optuna.Study) -> Summary:
    """Read all trials of a study."""
    trials = study.get_trials(deepcopy=False)
    maximize = study.directions[0].name == "MAXIMIZE"
    goals = Goals.of(study.user_attrs)
    return Summary(
        study.study_name,
        study.metric_names[0] if study.metric_names else "value",
        maximize=maximize,
        trials=[_row(trial, maximize, goals) for trial in trials],
        params=list(dict.fromkeys(name for trial in trials for name in trial.distributions)),
        objectives=list(goals.objectives),
        best=[trial.number for trial in best_trials(study)],
    )


def _row(trial: FrozenTrial, maximize: bool, goals: Goals) -> TrialRow:
    outcome: dict[str, Any] = trial.user_attrs.get(OUTCOME) or {}
    state = "paused" if is_paused(trial) else STATES[trial.state.name]
    value = trial.values[0] if state == "complete" else None
    if value is None and state != "failed":
        # The job wrote it, unless it still runs.
        best = best_so_far(trial, maximize=maximize)
        value = outcome.get("value", None if math.isnan(best) else best)
    measured = trial.user_attrs.get(MEASURED, {})
    return TrialRow(
        number=trial.number,
        state=state,
        value=value,
        sd=outcome.get("sd"),
        examples=outcome.get("examples") or trial.last_step,
        wall_s=outcome.get("wall_s") or worked_s(trial) or (trial.duration.total_seconds() if trial.duration else None),
        params=dict(trial.params),
        error=outcome.get("error") or "",
        measured=dict(measured),
        is_feasible=not goals.broken(measured) if goals.constraints and measured else None,
    )
