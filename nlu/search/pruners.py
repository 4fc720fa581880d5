"""The pruners of a search by name, and the one that stops trials: HyperBand (Li et al., JMLR 18 (2018), 185).

A hash assigns each trial to a bracket, in proportion to the budgets of the brackets. Trials are judged as they come
(ASHA, Li et al., MLSys 2020), so none waits for another. Optuna's pruner passes each trial that is among the best
1 / reduction_factor so far, no matter how many have passed. This one also bounds the number that passes (`passes`), so
it keeps to the announced cost, and samplers see the trials of all brackets.

asha and freeze_thaw pause trials instead of stopping them: they are schedulers of the search, `nlu.search.schedulers`.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nlu.config.checks.validate import show
from nlu.config.nearest import hint
from nlu.search.goals import is_infeasible
from nlu.search.schedulers.scheduler import PAUSING
from nlu.search.steps import best_so_far

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

KEY = "hydra.sweeper.pruner"
HYPERBAND, NONE = "hyperband", "none"
NAMES = (HYPERBAND, *PAUSING, NONE)
GONE = ("successive_halving", "median", "threshold")
"""names of former versions"""
PRUNER = "pruner"
"""user attribute of a study: the specification of its pruner (`nlu.search.resources.pruner_spec`)"""
RUNG = "rung_{examples}"
"""system attribute of a trial at a rung, a mapping: its `bracket` (named by the first rung of that), its `value`, and
whether it `passed`"""


def problem_of(written: object) -> str | None:
    """Return what is wrong with a pruner as it is written; null is none."""
    if written is None or written in NAMES:
        return None
    if isinstance(written, Mapping):
        name = written.get("name")
        remedy = f"{KEY}={name if name in NAMES else HYPERBAND}"
        return f"{KEY} is {show(written)}, but no pruner has parameters; set {remedy}"
    if written in GONE:
        return f"{KEY} is {written}, which there is no more; set {KEY}={HYPERBAND}, or asha, which pauses trials"
    return f"{KEY} is {show(written)}, which names no pruner; {hint(str(written), NAMES)}"


@dataclass(frozen=True)
class Bracket:
    """A bracket of HyperBand."""

    number: int
    rungs: tuple[int, ...]
    """examples seen at which trials are judged"""
    budget: int
    """its share of the trials, relative to the budgets of the others"""


def brackets(spec: Mapping[str, Any]) -> list[Bracket]:
    """Return the brackets for the specification of a pruner; none unless it is HyperBand."""
    if spec.get("name") != HYPERBAND:
        return []
    low, high, factor = spec["min_resource"], spec["max_resource"], spec["reduction_factor"]
    # The number of brackets, each of which begins one rung later than the one before.
    count = 1
    while low * factor**count <= high:
        count += 1
    return [
        Bracket(
            number,
            _rungs(low, low * factor**number, high, factor),
            # The paper's number of configurations of a bracket, at which all brackets cost about the same.
            math.ceil(count * factor ** (count - 1 - number) / (count - number)),
        )
        for number in range(count)
    ]


def _rungs(low: int, first: int, high: int, factor: int) -> tuple[int, ...]:
    found = []
    # `low` is rounded down, so the last multiple may lie just before the end of a trial, where a rung is of no use.
    while first + first // low <= high:
        found.append(first)
        first *= factor
    return tuple(found)


def bracket_of(found: Sequence[Bracket], study: str, number: int) -> Bracket:
    """Return the bracket of a trial, a pure function of the study and the number."""
    # CRC-32 and not `hash`, which Python salts in each process.
    drawn = binascii.crc32(f"{study}_{number}".encode()) % sum(bracket.budget for bracket in found)
    for bracket in found:
        drawn -= bracket.budget
        if drawn < 0:
            return bracket
    raise AssertionError("a number below the sum of all budgets falls into one of them")


def passes(value: float, others: Sequence[float], passed: int, factor: int) -> bool:
    """Return whether the next trial passes a rung; greater is better, and no value is NaN.

    `others` are the values of the trials that came before, of which so many have `passed`. A trial passes if it is
    among the best 1 / factor so far; another one with the same value passes with it. Once more than that share of all
    trials have passed, only a new best one passes. About as many trials pass as if they came in random order. Without
    this bound, far more would pass when trials keep getting better, as with a sampler that learns, and the search would
    exceed its announced cost.
    """
    share = (len(others) + 1) // factor
    if passed > share:
        return all(value > other for other in others)
    return sum(other > value for other in others) < max(1, share)


class HalvingPruner:
    """Stops a trial at the first rung of its bracket that it does not pass; without HyperBand it stops none.

    A trial is judged by its best value so far, as at its end; without one it does not pass. With folds that is the mean
    over those that have ended. A fold has ended after its last report, so a rung that this report reaches does not
    count it: all trials of the bracket are judged without it. The decision at a rung is stored as an attribute of the
    trial and never changes, so a job that is killed before it gets the answer gets the same one later. Jobs that reach
    a rung at the same moment do not see each other. If an evaluation reaches several rungs at once, only the last one
    decides: passing each of them would be harder than the share of one rung.
    """

    def __init__(self, spec: Mapping[str, Any], storage: BaseStorage):
        """`storage` is that of the study."""
        self._brackets, self._storage, self._factor = brackets(spec), storage, spec.get("reduction_factor", 0)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, given its reports so far."""
        if not self._brackets or trial.last_step is None:
            return False
        bracket = bracket_of(self._brackets, study.study_name, trial.number)
        reached = [at for at in bracket.rungs if at <= trial.last_step]
        return bool(reached) and not self._passed(study, bracket.rungs[0], reached[-1], trial)

    def _passed(self, study: Study, bracket: int, at: int, trial: FrozenTrial) -> bool:
        name = RUNG.format(examples=at)
        # Decided before: a job that was killed before it got the answer asks again.
        if name in trial.system_attrs:
            return bool(trial.system_attrs[name]["passed"])
        # From attributes and not from reported values: trials reach a rung at slightly different numbers of examples.
        trials = [other for other in study.get_trials(deepcopy=False) if not is_infeasible(other)]
        attributes = [other.system_attrs.get(name) for other in trials]
        others = [found for found in attributes if found and found["bracket"] == bracket]
        sign = 1 if study.directions[0].name == "MAXIMIZE" else -1
        value = best_so_far(trial, maximize=sign == 1)
        goods = [-math.inf if math.isnan(each) else sign * each for each in (value, *(one["value"] for one in others))]
        # The newest trial is judged against those that came before.
        passed = sum(one["passed"] for one in others)
        found = not math.isnan(value) and passes(goods[0], goods[1:], passed, self._factor)
        study_id = self._storage.get_study_id_from_name(study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        self._storage.set_trial_system_attr(trial_id, name, {"bracket": bracket, "value": value, "passed": found})
        return found
