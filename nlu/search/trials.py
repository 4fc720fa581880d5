"""The trials of a search as plain records, and their table, printed and as a file; the page shows the same records.

The table of the decisions of a search, as they are stored: what was decided about which trial, when and why.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from nlu.config.sentences import counted, listed
from nlu.display.console_tables import Column, count_text, fitted, metric_text, print_table, value_text
from nlu.display.progress_bars import format_time
from nlu.search.pruners import RUNG
from nlu.search.trial_steps import pauses_of, steps_of, value_at_end
from nlu.storage.files import write_text

STATE_ORDER = ("complete", "paused", "pruned", "failed", "running", "waiting")
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
    error: str
    measured: dict[str, float] = field(default_factory=dict)
    """objectives besides the metric, and the quantities of constraints"""
    is_feasible: bool | None = None
    """whether it keeps all constraints; None without any, or if that is not known"""


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
    objectives: list[str] = field(default_factory=list)
    """those besides the metric"""
    best: list[int] = field(default_factory=list)
    """the best trial; of several objectives the front, the trial with the best metric first"""

    @property
    def ranked(self) -> list[TrialRow]:
        """All trials, best first: by state, the best ones first, those that break a constraint last, by value."""
        return sorted(self.trials, key=self._rank)

    def _rank(self, trial: TrialRow) -> tuple[int, bool, bool, float, int]:
        # The smallest is the best for both directions of a metric; a trial without a value comes last.
        value = math.inf if trial.value is None else (-trial.value if self.maximize else trial.value)
        is_best = trial.number in self.best
        return STATE_ORDER.index(trial.state), not is_best, trial.is_feasible is False, value, trial.number

    @property
    def counts(self) -> str:
        """`24 trials: 10 complete, 13 pruned, 1 failed`."""
        counts = Counter(trial.state for trial in self.trials)
        parts = ", ".join(f"{counts[state]} {state}" for state in STATE_ORDER if counts[state])
        return f"{counted(len(self.trials), 'trial')}{': ' * bool(parts)}{parts}"


@dataclass(frozen=True)
class _Field:
    """One column of both tables: what the file holds of a trial, and how the printed table shows it."""

    name: str
    of: Callable[[TrialRow], object]
    text: Callable[[Any], str]
    is_number: bool = True
    may_go: int = 0
    header: str = ""
    """of the printed table, if it is another"""


def _fields(summary: Summary) -> list[_Field]:
    found = [
        _Field("trial", lambda trial: trial.number, str),
        _Field("state", lambda trial: trial.state, str, is_number=False),
        _Field(summary.metric, lambda trial: trial.value, metric_text),
        _Field("sd", lambda trial: trial.sd, lambda value: "" if value is None else metric_text(value)),
        _Field("examples", lambda trial: trial.examples, count_text, may_go=1),
        _Field("wall_s", lambda trial: trial.wall_s, _duration_text, may_go=2, header="wall"),
    ]
    quantities = [*summary.objectives, *(name for trial in summary.trials for name in trial.measured)]
    found += [_Field(name, _quantity(name), value_text) for name in dict.fromkeys(quantities)]
    if summary.objectives:
        found.append(_Field("front", lambda trial: trial.number in summary.best, lambda is_on: "*" * is_on, False))
    if any(trial.is_feasible is not None for trial in summary.trials):
        words = {True: "yes", False: "no", None: ""}
        found.append(_Field("feasible", lambda trial: trial.is_feasible, words.__getitem__, False))
    return [*found, *(_Field(name, _drawn(name), value_text, False) for name in summary.params)]


def _quantity(name: str) -> Callable[[TrialRow], object]:
    return lambda trial: trial.measured.get(name)


def _drawn(name: str) -> Callable[[TrialRow], object]:
    return lambda trial: trial.params.get(name)


def write_trials(path: Path, summary: Summary) -> None:
    """Write a line for each trial, by number, with all digits."""
    fields = [*_fields(summary), _Field("error", lambda trial: trial.error, str)]
    rows = ((field.of(trial) for field in fields) for trial in summary.trials)
    write_table(path, [field.name for field in fields], rows)


def write_table(path: Path, names: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a header and tab-separated lines."""
    lines = ["\t".join(names), *("\t".join(map(_cell, row)) for row in rows)]
    write_text(path, "".join(f"{line}\n" for line in lines))


def _cell(value: object) -> str:
    # A tab or a line end within an error would break the table.
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return "" if value is None else " ".join(text.split())


def print_trials(summary: Summary) -> None:
    """Print the trials, best first; of a long search only the first ones, and how many are left out."""
    table, gone = fitted(columns_of(summary, summary.ranked[:MAX_PRINTED]))
    print_table("", table, "", summary.counts)
    if gone:
        print_table(f"too wide for this terminal: {', '.join(gone)}", style="dim")
    if len(summary.trials) > MAX_PRINTED:
        print_table(f"the {MAX_PRINTED} best are shown; all are in trials.tsv")
    _print_failures([trial for trial in summary.trials if trial.state == "failed"])


def columns_of(summary: Summary, shown: list[TrialRow]) -> list[Column]:
    """Return the columns of a table of these trials."""
    return [
        Column(
            field.header or field.name, [field.text(field.of(trial)) for trial in shown], field.is_number, field.may_go
        )
        for field in _fields(summary)
        if field.name != "sd" or any(trial.sd is not None for trial in shown)
    ]


def _print_failures(failed: list[TrialRow]) -> None:
    """Print one line for each distinct error."""
    ways: dict[str, list[int]] = {}
    for trial in failed:
        # Trials of a search often fail for one reason, which is printed once.
        ways.setdefault(" ".join(trial.error.split()) or "it left no error message", []).append(trial.number)
    for error, numbers in ways.items():
        shown = listed([*map(str, numbers)], MAX_NUMBERS)
        print_table(f"failed: trial{'s' * (len(numbers) > 1)} {shown}: {error}", style="red")


def _duration_text(duration_s: float | None) -> str:
    return "-" if duration_s is None else format_time(round(duration_s))


COLUMNS = ("decision", "trial", "what", "examples", "value", "rule", "chance")
"""the place among the decisions of the scheduler; what happened; the examples at which it did, or up to which the trial
may train; its value there, if known; what decided"""
Row = dict[str, Any]


def decision_rows(trials: Sequence[FrozenTrial]) -> list[Row]:
    """Return all decisions of a search: those of its scheduler in their order, otherwise those at rungs, by trial.

    A trial that a pruner without rungs stopped has one row.
    """
    found: list[tuple[tuple[int, ...], Row]] = []
    for trial in trials:
        # A pause is decided before the step that another trial gets instead.
        found += (
            ((number, 0), _decision_row(trial, "paused", pause["at"], number)) for number, pause in pauses_of(trial)
        )
        for place, (number, step) in enumerate(steps_of(trial)):
            row = _decision_row(trial, "continued" if place else "begun", step["until"], number)
            found.append(((number, 1), {**row, **step["why"]}))
        found += (((0, trial.number, row["examples"]), row) for row in _judged(trial))
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def write_decisions(path: Path, rows: Sequence[Row]) -> None:
    """Write a line for each decision."""
    write_table(path, COLUMNS, ([row.get(name) for name in COLUMNS] for row in rows))


def _decision_row(trial: FrozenTrial, what: str, at: int, number: int | None = None) -> Row:
    value = value_at_end(trial, at)
    value = value if value is not None and math.isfinite(value) else None
    return {"decision": number, "trial": trial.number, "what": what, "examples": at, "value": value}


def _judged(trial: FrozenTrial) -> Iterator[Row]:
    """Yield what the pruner decided about a trial: at each of its rungs, or, without rungs, that it stops."""
    pattern = re.compile(RUNG.format(examples=r"(\d+)"))
    rungs = {int(found[1]): judged for name, judged in trial.system_attrs.items() if (found := pattern.fullmatch(name))}
    for at, judged in sorted(rungs.items()):
        value = judged["value"] if math.isfinite(judged["value"]) else None
        yield {**_decision_row(trial, "passed" if judged["passed"] else "pruned", at), "value": value}
    if trial.state.name == "PRUNED" and not rungs:
        yield _decision_row(trial, "pruned", trial.last_step or 0)
