"""The table of the decisions of a search: what happened to which trial, and the numbers that decided, as stored."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from nlu.search.channel import OUTCOME
from nlu.search.pruners import RUNG
from nlu.search.steps import PART_ENDS, pauses_of, steps_of, value_at_end
from nlu.search.trials import write_table

COLUMNS = ("decision", "trial", "what", "from", "until", "value")
"""of every decision: its place among those of the scheduler, what happened (a trial that is `continued` was not paused
before, and a user has `stopped` one), the examples that the trial had seen, those after which it is decided about again
(none if it does not continue, or to the end of a fold), and its value then"""
Row = dict[str, Any]


def decision_rows(trials: Sequence[FrozenTrial]) -> list[Row]:
    """Return all decisions of a search: those of its scheduler in their order, otherwise those at rungs, by trial.

    A row has the keys of `COLUMNS`, and those of the numbers that decided. A trial that a pruner without rungs stopped
    has one row.
    """
    found: list[tuple[tuple[int, ...], Row]] = []
    for trial in trials:
        found += _scheduled(trial)
        found += (((0, trial.number, row["from"]), row) for row in _judged(trial))
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def write_decisions(path: Path, rows: Sequence[Row]) -> None:
    """Write a line for each decision; without any, an existing file is removed."""
    if rows:
        names = dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])
        write_table(path, names, ([row.get(name) for name in names] for row in rows))
    else:
        path.unlink(missing_ok=True)


def _scheduled(trial: FrozenTrial) -> Iterator[tuple[tuple[int, ...], Row]]:
    """Yield the steps and pauses of a trial, each with its place among all of the search."""
    # A pause is decided before the step that another trial gets instead.
    pauses = [((number, 0), pause) for number, pause in pauses_of(trial)]
    steps = [((number, 1), step) for number, step in steps_of(trial)]
    before: int | None = None
    is_paused = False
    for place, what in sorted([*pauses, *steps], key=lambda each: each[0]):
        if place[1] == 0:
            start, is_paused = what["at"], True
            yield (*place, trial.number), _row(trial, "paused", start, place[0])
            continue
        start = 0 if before is None else _reached(trial, before)
        event = "begun" if before is None else "thawed" if is_paused else "continued"
        before, is_paused = what["until"], False
        # A step over a whole fold has no number of examples yet.
        until = None if before - 1 in trial.user_attrs.get(PART_ENDS, []) else before
        # What a model remembers for later decisions is a list.
        why = {name: value for name, value in what["why"].items() if not isinstance(value, list)}
        yield (*place, trial.number), {**_row(trial, event, start, place[0]), "until": until, **why}


def _row(trial: FrozenTrial, what: str, at: int, number: int | None = None) -> Row:
    value = value_at_end(trial, at)
    value = value if value is not None and math.isfinite(value) else None
    return {"decision": number, "trial": trial.number, "what": what, "from": at, "until": None, "value": value}


def _reached(trial: FrozenTrial, until: int) -> int:
    """Return where a step ended: at the first evaluation after its examples, or at the end of a fold."""
    ends = trial.user_attrs.get(PART_ENDS, [])
    if until - 1 in ends:
        # A step over a whole fold.
        return next((end for end in ends if end >= until), until)
    found = next((at for at in sorted(trial.intermediate_values) if at >= until), until)
    # A fold may end before its nominal length.
    return min(found, ends[0]) if ends else found


def _judged(trial: FrozenTrial) -> Iterator[Row]:
    """Yield what the pruner decided about a trial: at each of its rungs, or, without rungs, that it stops."""
    pattern = re.compile(RUNG.format(examples=r"(\d+)"))
    rungs = {int(found[1]): judged for name, judged in trial.system_attrs.items() if (found := pattern.fullmatch(name))}
    for at, judged in sorted(rungs.items()):
        value = judged["value"] if math.isfinite(judged["value"]) else None
        why = {name: each for name, each in judged.items() if name != "passed"}
        yield {**_row(trial, "passed" if judged["passed"] else "pruned", at), **why, "value": value}
    if trial.state.name == "PRUNED" and not rungs:
        # A trial that no pruner stopped has a reason.
        why = trial.user_attrs.get(OUTCOME, {}).get("error")
        yield _row(trial, "stopped" if why else "pruned", trial.last_step or 0)
