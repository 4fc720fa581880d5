"""The table of the decisions of a search, as they are stored: what was decided about which trial, when and why."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from nlu.search.pruners import RUNG
from nlu.search.steps import pauses_of, steps_of, value_at_end
from nlu.search.trials import write_table

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
        found += (((number, 0), _decision_row(trial, "paused", pause["at"], number)) for number, pause in pauses_of(trial))
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
