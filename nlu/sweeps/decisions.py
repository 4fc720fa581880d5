"""The decisions of a search for people: what happened to which trial, and why, from what the storage has."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from nlu.display.decisions import DecisionRow
from nlu.sweeps.brackets import RUNG
from nlu.sweeps.steps import PART_ENDS, STOP, pauses_of, steps_of, value_at_end

BEGUN, CONTINUED, PAUSED, THAWED, PASSED, PRUNED = "begun", "continued", "paused", "thawed", "passed", "pruned"
"""the kinds of decisions; a trial that is `continued` was not paused before"""
LEAST = 0.001
"""chances below it are not told apart"""


def decision_rows(trials: Sequence[FrozenTrial], *, maximize: bool) -> list[DecisionRow]:
    """Return all decisions of a search: those of its scheduler in their order, otherwise those at rungs, by trial.

    A trial that a pruner without rungs stopped has one row.
    """
    found: list[tuple[tuple[int, ...], DecisionRow]] = []
    for trial in trials:
        found += _scheduled(trial, maximize=maximize)
        found += (((0, trial.number, row.start), row) for row in _judged(trial))
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def _scheduled(trial: FrozenTrial, *, maximize: bool) -> Iterator[tuple[tuple[int, ...], DecisionRow]]:
    """Yield the steps and pauses of a trial, each with its place among all of the search."""
    # A pause is decided before the step that another trial gets instead.
    pauses = [((number, 0), pause) for number, pause in pauses_of(trial)]
    steps = [((int(name.rpartition("_")[2]), 1), step) for name, step in steps_of(trial)]
    before: int | None = None
    is_paused = False
    for place, what in sorted([*pauses, *steps], key=lambda each: each[0]):
        why = what["why"]
        if place[1] == 0:
            start, is_paused = what["at"], True
            row = DecisionRow(place[0], trial.number, PAUSED, start, None, _value(trial, start), pause_reason(why))
        else:
            start = 0 if before is None else _reached(trial, before)
            event = BEGUN if before is None else THAWED if is_paused else CONTINUED
            before, is_paused = what["until"], False
            reason = step_reason(why, maximize=maximize)
            # A step over a whole fold has no number of examples yet.
            until = None if before - 1 in trial.user_attrs.get(PART_ENDS, []) else before
            row = DecisionRow(place[0], trial.number, event, start, until, _value(trial, start), reason)
        yield (*place, trial.number), row


def _reached(trial: FrozenTrial, until: int) -> int:
    """Return where a step ended: at the first evaluation after its examples, or at the end of a fold."""
    ends = trial.user_attrs.get(PART_ENDS, [])
    if until - 1 in ends:
        # A step over a whole fold.
        return next((end for end in ends if end >= until), until)
    found = next((at for at in sorted(trial.intermediate_values) if at >= until), until)
    # A fold may end before its nominal length.
    return min(found, ends[0]) if ends else found


def _value(trial: FrozenTrial, at: int) -> float | None:
    value = value_at_end(trial, at)
    return value if value is not None and math.isfinite(value) else None


def _judged(trial: FrozenTrial) -> Iterator[DecisionRow]:
    """Yield what the pruner decided about a trial: at each of its rungs, or, without rungs, that it stops."""
    pattern = re.compile(RUNG.format(examples=r"(\d+)"))
    rungs = {int(found[1]): judged for name, judged in trial.system_attrs.items() if (found := pattern.fullmatch(name))}
    for at, judged in sorted(rungs.items()):
        event = PASSED if judged["passed"] else PRUNED
        value = judged["value"] if math.isfinite(judged["value"]) else None
        yield DecisionRow(None, trial.number, event, at, None, value, rung_reason(judged))
    if trial.state.name == "PRUNED" and not rungs:
        at = trial.last_step or 0
        if STOP in trial.user_attrs:
            why = "a user stopped it"
        else:
            why = "the pruner stopped it"
        yield DecisionRow(None, trial.number, PRUNED, at, None, _value(trial, at), why)


def rung_reason(judged: Mapping[str, Any]) -> str:
    """Return why a trial passed a rung or not: its place among those that had come."""
    bracket = f"in the bracket from {judged['bracket']:,}"
    if "rank" not in judged:
        return bracket
    best = _best(judged["pass"], "passes", "pass") if judged["pass"] else "only a new best passes"
    if judged["rank"] == 1 and not judged["passed"] and not judged["pass"]:
        return f"as good as the best of {judged['of']} so far {bracket}; {best}"
    return f"{ordinal(judged['rank'])} of {judged['of']} so far {bracket}; {best}"


def step_reason(why: Mapping[str, Any], *, maximize: bool) -> str:
    """Return why a trial got a step, from what the scheduler wrote."""
    rule = why.get("rule")
    if rule == "model":
        return _model_reason(why, maximize=maximize)
    if rule == "promoted":
        if "rank" not in why:
            return f"among the best at {why['rung']:,} examples"
        return f"{_place(why)}; {_best(why['pass'], 'continues', 'continue')}"
    sentences = {
        "random": "drawn at random",
        "new": "no paused trial may pass its rung",
        "only": "no trial has a value yet",
        "last": "the best trial; the rest of the search completes it",
    }
    return sentences.get(str(rule), "")


def _model_reason(why: Mapping[str, Any], *, maximize: bool) -> str:
    verb = "exceed" if maximize else "fall below"
    # A trial that has just trained continues if another one is likelier by next to nothing.
    is_better = why.get("second", math.inf) <= why["chance"]
    chances = _percents(why["chance"], why["second"]) if is_better else None
    own = chances[0] if chances else _percent(why["chance"])
    text = (
        f"{own} likely to {verb} {why['goal']:.4g} by {why['at']:,} examples: {why['mean']:.4g} "
        f"predicted, {why['low']:.4g} to {why['high']:.4g}"
    )
    if "second" in why:
        second = f"trial {why['second_trial']}" if "second_trial" in why else "a new trial"
        text += f"; next {second}, {chances[1]}" if chances else f"; {second} is about as likely"
    return text


def pause_reason(why: Mapping[str, Any]) -> str:
    """Return why a trial was paused, from what the scheduler wrote."""
    rule = why.get("rule")
    by = _named(why["by"]) if "by" in why else None
    if rule == "model":
        if (chances := _percents(why["theirs"], why["chance"])) is None:
            return f"{by} has about the same chance, {_percent(why['theirs'])}, and goes first"
        return f"{by} has the better chance, {chances[0]} against {chances[1]}"
    if rule == "rung" and "rank" in why:
        follows = f"; {by} goes first" if why["rank"] <= why["pass"] and by else ""
        best = _best(why["pass"], "continues", "continue") if why["pass"] else "too few to compare"
        return f"{_place(why)}; {best}{follows}"
    if rule == "budget":
        return f"the {why['left']:,} examples that are left do not complete it"
    sentences = {
        "part": "its fold has ended; the best trial continues with the next one",
        "last": f"{by} is the best trial; the rest of the search completes it",
        "random": f"{by} is drawn at random",
        "waits": "other trials still run",
    }
    return sentences.get(str(rule), f"{by} goes first" if by else "")


def _named(number: int | None) -> str:
    return "a new trial" if number is None else f"trial {number}"


def _place(why: Mapping[str, Any]) -> str:
    return f"{ordinal(why['rank'])} of {why['of']} at {why['rung']:,} examples"


def _best(count: int, one: str, several: str) -> str:
    return f"the best {one}" if count == 1 else f"the best {count} {several}"


def _percent(chance: float) -> str:
    return f"{chance:.0%}" if chance >= 0.095 or chance == 0 else f"{chance:.1%}" if chance >= LEAST else "under 0.1%"


def _percents(first: float, second: float) -> tuple[str, str] | None:
    """Return two chances with as many digits as tell them apart; None if they are about equal."""
    shown = _percent(first), _percent(second)
    if shown[0] != shown[1]:
        return shown
    # Below a tenth of a percent, and in a third digit, a difference says nothing about the trials.
    finer = f"{first:.1%}", f"{second:.1%}"
    return finer if finer[0] != finer[1] and min(first, second) >= LEAST else None


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, ..."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
