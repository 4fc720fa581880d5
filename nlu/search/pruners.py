"""The pruners that differ from those of Optuna: successive halving, for HyperBand too, and the median rule.

Optuna's pruner of successive halving passes each trial that is among the best 1 / reduction_factor so far, no matter
how many have passed. This one also bounds the number that passes (`nlu.search.brackets.Rung`), so it keeps to the
announced cost, and samplers see the trials of all brackets.

The median rule (Golovin et al., "Google Vizier", KDD 2017, section 3.2.2) is for trials with different batch sizes: it
compares evaluations at the same number of evaluation intervals, rounded. A trial with batches of 48 is scored after 528
examples when one with batches of 8 is scored after 504. Optuna's pruner needs exactly equal steps, and would find
nothing to compare.
"""

import copy
import math
from collections.abc import Callable, Container, Mapping
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nlu.search.brackets import RUNG, Bracket, Rung, bracket_of, brackets
from nlu.search.goals import is_infeasible
from nlu.search.steps import best_so_far


class HalvingPruner(BasePruner):
    """Stops a trial at the first rung of its bracket that it does not pass.

    The decision at a rung is stored as an attribute of the trial and never changes, so a job that is killed before it
    gets the answer gets the same one later. A trial is judged by its best value so far, as at its end. Jobs that reach
    a rung at the same moment do not see each other. A trial without a value that is a number does not pass. If an evaluation reaches several rungs at once, only the last one decides: passing each of them would be
    harder than the share of one rung.
    """

    def __init__(self, spec: Mapping[str, Any], storage: BaseStorage):
        self._brackets, self._storage = brackets(spec), storage
        self._factor, self._bootstrap_count = spec["reduction_factor"], spec["bootstrap_count"]

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, given its last reported value."""
        examples = trial.last_step
        if examples is None:
            return False
        bracket = bracket_of(self._brackets, study.study_name, trial.number)
        reached = [at for at in bracket.rungs if at <= examples]
        value = best_so_far(trial, maximize=study.directions[0] == StudyDirection.MAXIMIZE)
        return bool(reached) and not self._passed(study, bracket, reached[-1], trial, value)

    def _passed(self, study: Study, bracket: Bracket, at: int, trial: FrozenTrial, value: float) -> bool:
        name = RUNG.format(examples=at)
        # Decided before: a job that was killed before it got the answer asks again.
        if name in trial.system_attrs:
            return bool(trial.system_attrs[name]["passed"])
        first = bracket.rungs[0]
        # From attributes and not from reported values: trials reach a rung at slightly different numbers of examples.
        trials = [other for other in study.get_trials(deepcopy=False) if not is_infeasible(other)]
        attributes = [other.system_attrs.get(name) for other in trials]
        others = [found for found in attributes if found and found["bracket"] == first]
        goodness = more_is_better(study.directions[0])
        rung = Rung((goodness(other["value"]) for other in others), sum(other["passed"] for other in others))
        # The newest trial is judged against those that came before, without itself.
        passed = not math.isnan(value) and rung.lets_pass(goodness(value), self._factor, self._bootstrap_count)
        study_id = self._storage.get_study_id_from_name(study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        decision = {"bracket": first, "value": value, "passed": passed, **rung.place(goodness(value), self._factor)}
        self._storage.set_trial_system_attr(trial_id, name, decision)
        return passed


def more_is_better(direction: StudyDirection) -> Callable[[float], float]:
    """Return a function that maps better values to greater numbers, and NaN to the least one."""
    sign = 1 if direction == StudyDirection.MAXIMIZE else -1
    return lambda value: -math.inf if math.isnan(value) else sign * value


class MedianPruner(BasePruner):
    """Optuna's median rule over evaluations at the nearest multiple of `eval_interval` instead of equal numbers of
    examples; the other parameters are those of Optuna's MedianPruner.
    """

    def __init__(self, spec: Mapping[str, Any]):
        parameters = dict(spec)
        self._interval: int = parameters.pop("eval_interval")
        self._rule = optuna.pruners.MedianPruner(**parameters)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, given its reports so far."""

        def planned_trials(deepcopy: bool, states: Container[TrialState]) -> list[FrozenTrial]:
            trials = study.get_trials(deepcopy=deepcopy, states=states)
            return [self._planned(other) for other in trials if not is_infeasible(other)]

        seen: Any = SimpleNamespace(direction=study.directions[0], get_trials=planned_trials)
        return self._rule.prune(seen, self._planned(trial))

    def _planned(self, trial: FrozenTrial) -> FrozenTrial:
        """Return a trial whose reports are at the examples at which they were planned."""
        planned = copy.copy(trial)
        # Rounded to the nearest multiple, in integers.
        planned.intermediate_values = {
            (2 * at + self._interval) // (2 * self._interval) * self._interval: value
            for at, value in sorted(trial.intermediate_values.items())
        }
        return planned
