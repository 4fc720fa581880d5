"""The pruner of HyperBand and successive halving, which keeps to the announced cost.

Optuna's pruner passes each trial that is among the best 1 / reduction_factor so far, no matter how many have passed.
This one also bounds the number that passes (`nlu.sweeps.brackets.Rung`), and samplers see the trials of all brackets.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from optuna.pruners import BasePruner
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from nlu.sweeps.brackets import Bracket, Rung, bracket_of, brackets

ATTRIBUTE = "rung_{examples}"
"""system attribute of a trial at a rung, a mapping: its `bracket` (named by the first rung of that), its `value` and
whether it `passed`"""


class HalvingPruner(BasePruner):
    """Stops a trial at the first rung of its bracket that it does not pass.

    The decision at a rung is stored as an attribute of the trial and never changes, so a job that is killed before it
    gets the answer gets the same one later. Jobs that reach a rung at the same moment do not see each other. NaN does
    not pass. If an evaluation reaches several rungs at once, only the last one decides: passing each of them would be
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
        return bool(reached) and not self._passed(
            study, bracket, reached[-1], trial, trial.intermediate_values[examples]
        )

    def _passed(self, study: Study, bracket: Bracket, at: int, trial: FrozenTrial, value: float) -> bool:
        name = ATTRIBUTE.format(examples=at)
        if name in trial.system_attrs:
            return bool(trial.system_attrs[name]["passed"])
        first = bracket.rungs[0]
        attributes = [other.system_attrs.get(name) for other in study.get_trials(deepcopy=False)]
        others = [found for found in attributes if found and found["bracket"] == first]
        goodness = more_is_better(study.direction)
        rung = Rung((goodness(other["value"]) for other in others), sum(other["passed"] for other in others))
        passed = not math.isnan(value) and rung.lets_pass(goodness(value), self._factor, self._bootstrap_count)
        study_id = self._storage.get_study_id_from_name(study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        self._storage.set_trial_system_attr(trial_id, name, {"bracket": first, "value": value, "passed": passed})
        return passed


def more_is_better(direction: StudyDirection) -> Callable[[float], float]:
    """Return a function that maps better values to greater numbers, and NaN to the least one."""
    sign = 1 if direction == StudyDirection.MAXIMIZE else -1
    return lambda value: -math.inf if math.isnan(value) else sign * value
