"""The trials of a search as plain records, and their table; figures and page show the same records."""

import io
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nlu.config.words import counted, listed
from nlu.display.progress import format_time
from nlu.display.tables import Column, count_text, fitted, metric_text, print_table, value_text
from nlu.storage.files import write_text

STATES = ("complete", "paused", "pruned", "failed", "running", "waiting")
"""in the order of the table"""
MAX_PRINTED = 30
MAX_NUMBERS = 8


@dataclass(frozen=True)
class TrialRow:
    """One trial."""

    number: int
    state: str
    value: float | None
    """of a trial that did not complete, the best that it reported, or the mean over the folds that have ended"""
    sd: float | None
    """over folds and seeds, if the trial had several"""
    examples: int | None
    wall_s: float | None
    params: dict[str, Any]
    folder: str | None
    error: str
    measured: dict[str, float] = field(default_factory=dict)
    """objectives besides the metric, and the quantities of constraints"""
    broken: list[str] = field(default_factory=list)
    """the constraints that it breaks"""


@dataclass(frozen=True)
class Summary:
    """A study."""

    name: str
    metric: str
    maximize: bool
    trials: list[TrialRow]
    """by number"""
    params: list[str]
    """the keys that any trial drew"""
    objectives: dict[str, bool] = field(default_factory=dict)
    """those besides the metric, by name, with whether more is better"""
    constraints: list[str] = field(default_factory=list)
    front: list[int] = field(default_factory=list)
    """of several objectives: the trials that no other one dominates, the best value first"""

    @property
    def best(self) -> TrialRow | None:
        """The complete trial with the best value that keeps all constraints; None without one.

        Of several, the one on the front, or without a front the first.
        """
        if self.front:
            return next(trial for trial in self.trials if trial.number == self.front[0])
        done = [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]
        return min((trial for trial in done if not trial.broken), key=self._rank, default=None)

    def is_feasible(self, trial: TrialRow) -> bool | None:
        """Return whether a trial keeps all constraints; None if that is not known."""
        if trial.broken:
            return False
        names = {text[: text.index("=") - 1] for text in self.constraints}
        return True if names <= trial.measured.keys() else None

    @property
    def quantities(self) -> list[str]:
        """The names of all that was measured of trials, objectives first."""
        return list(dict.fromkeys([*self.objectives, *(name for trial in self.trials for name in trial.measured)]))

    @property
    def ranked(self) -> list[TrialRow]:
        """All trials, best first: by state, those of the front first, those that break a constraint last, by value."""
        places = {trial.number: (trial.number not in self.front) + bool(trial.broken) for trial in self.trials}
        return sorted(
            self.trials, key=lambda trial: (STATES.index(trial.state), places[trial.number], *self._rank(trial))
        )

    def _rank(self, trial: TrialRow) -> tuple[float, int]:
        # The smallest is the best for both directions of a metric; a trial without a value comes last.
        value = math.inf if trial.value is None else (-trial.value if self.maximize else trial.value)
        return value, trial.number

    @property
    def counts(self) -> str:
        """`24 trials: 10 complete, 13 pruned, 1 failed`."""
        counts = Counter(trial.state for trial in self.trials)
        parts = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        return f"{counted(len(self.trials), 'trial')}{': ' * bool(parts)}{parts}"


def written(value: object) -> str:
    """Return a value as it is written in a configuration."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def write_trials(path: Path, summary: Summary, place: Path) -> None:
    """Write one tab-separated line for each trial, by number, with all digits.

    Folders of trials are relative to `place`, the folder of the search, so that it can be moved.
    """
    text = io.StringIO()
    # Only searches with such goals have these columns.
    goals = [*summary.quantities, *["front"] * bool(summary.objectives), *["feasible"] * bool(summary.constraints)]
    names = ["trial", "state", summary.metric, "sd", "examples", "wall_s", *goals, *summary.params, "folder", "error"]
    text.write("\t".join(names) + "\n")
    for trial in summary.trials:
        cells = [trial.number, trial.state, trial.value, trial.sd, trial.examples, trial.wall_s]
        cells += [_goal(summary, trial, name) for name in goals]
        cells += [trial.params.get(name) for name in summary.params]
        text.write("\t".join(_cell(value) for value in [*cells, _within(place, trial.folder), trial.error]) + "\n")
    write_text(path, text.getvalue())


def _goal(summary: Summary, trial: TrialRow, name: str) -> object:
    if name == "front":
        return trial.number in summary.front
    if name == "feasible":
        return summary.is_feasible(trial)
    value = trial.measured.get(name)
    return int(value) if name == "parameters" and value is not None else value


def _within(place: Path, folder: str | None) -> str | None:
    if folder is None or not Path(folder).is_relative_to(place.absolute()):
        return folder
    return str(Path(folder).relative_to(place.absolute()))


def _cell(value: object) -> str:
    # A tab or a line end within an error would break the table.
    return "" if value is None else " ".join(written(value).split())


def print_trials(summary: Summary) -> None:
    """Print the trials, best first; of a long search only the first ones, and how many are left out."""
    table, gone = fitted(columns_of(summary, summary.ranked[:MAX_PRINTED]))
    print_table("", table, "", summary.counts)
    if summary.objectives:
        print_table(front_line(summary))
    if gone:
        print_table(f"too wide for this terminal: {', '.join(gone)}", style="dim")
    if len(summary.trials) > MAX_PRINTED:
        print_table(f"the {MAX_PRINTED} best are shown; all are in trials.tsv")
    _print_failures([trial for trial in summary.trials if trial.state == "failed"])


def columns_of(summary: Summary, shown: list[TrialRow]) -> list[Column]:
    """Return the columns of a table of these trials."""
    columns = [
        Column("trial", [str(trial.number) for trial in shown]),
        Column("state", [trial.state for trial in shown], is_number=False),
        Column(summary.metric, [metric_text(trial.value) for trial in shown]),
    ]
    if any(trial.sd is not None for trial in shown):
        columns.append(Column("sd", ["" if trial.sd is None else metric_text(trial.sd) for trial in shown]))
    columns += [
        Column("examples", [count_text(trial.examples) for trial in shown], may_go=1),
        Column("wall", [duration_text(trial.wall_s) for trial in shown], may_go=2),
    ]
    columns += _goal_columns(summary, shown)
    for name in summary.params:
        columns.append(Column(name, [value_text(trial.params.get(name)) for trial in shown], is_number=False))
    return columns


def _goal_columns(summary: Summary, shown: list[TrialRow]) -> list[Column]:
    """Return the columns of what was measured, which trials are on the front, and which break a constraint."""
    columns = [
        Column(name, [quantity_text(trial.measured.get(name)) for trial in shown]) for name in summary.quantities
    ]
    if summary.objectives:
        columns.append(
            Column("front", ["*" if trial.number in summary.front else "" for trial in shown], is_number=False)
        )
    if summary.constraints:
        words = {True: "yes", False: "no", None: ""}
        columns.append(Column("feasible", [words[summary.is_feasible(trial)] for trial in shown], is_number=False))
    return columns


def quantity_text(value: float | None) -> str:
    """Return a measured quantity: a large one without digits after the point."""
    return count_text(value) if value is not None and abs(value) >= 1000 else metric_text(value)


def front_line(summary: Summary) -> str:
    """Return the sentence about the front."""
    names = " and ".join([summary.metric, *summary.objectives])
    if not summary.front:
        return f"no trial is on the front of {names}"
    one = len(summary.front) == 1
    return (
        f"the front of {names}: trial{'' if one else 's'} {', '.join(map(str, summary.front))}; no other trial is at "
        f"least as good in each and better in one"
    )


def _print_failures(failed: list[TrialRow]) -> None:
    """Print one line for each distinct error."""
    ways: dict[str, list[int]] = {}
    for trial in failed:
        # Trials of a search often fail for one reason, which is printed once.
        ways.setdefault(" ".join(trial.error.split()) or "it left no error message", []).append(trial.number)
    for error, numbers in ways.items():
        shown = listed([*map(str, numbers)], MAX_NUMBERS)
        print_table(f"failed: trial{'s' * (len(numbers) > 1)} {shown}: {error}", style="red")


def duration_text(duration_s: float | None) -> str:
    """Return `4:07`, `1:04:07`, or tenths of a second below a minute."""
    if duration_s is None:
        return "-"
    if round(duration_s, 1) < 60:
        return f"{duration_s:.1f} s"
    return format_time(round(duration_s))
