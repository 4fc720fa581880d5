"""The pruner of HyperBand and of successive halving, which keeps to the cost that was announced.

optuna's own passes a trial that is among the best 1 / reduction_factor of those before it, however many have passed.
This one counts those too (`nlu.sweeps.brackets.Rung`). Nor does it keep from a sampler what other brackets found.
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
"""system attribute of a trial that came to a rung: a mapping of its `bracket` (that one's first rung), its `value`
there, and whether it `passed`"""


class HalvingPruner(BasePruner):
    """Stops a trial at the first rung of its bracket that it does not pass.

    What happened at a rung is an attribute of the trial in `storage`, the study's own, and stands, so that a job that
    was killed before it heard the answer hears the same one. Jobs that come to a rung at the same moment do not see one
    another there. A value that is not a number does not pass. An evaluation that comes to several rungs at once is
    judged at the last of them alone: to be judged at each would be to be among the best of the best of a share.
    """

    def __init__(self, spec: Mapping[str, Any], storage: BaseStorage):
        self._brackets, self._storage = brackets(spec), storage
        self._factor, self._bootstrap_count = spec["reduction_factor"], spec["bootstrap_count"]

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, by its value at the most examples that it reported."""
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
    """Return a function under which the better of two values is the greater, and one that is no number the least."""
    sign = 1 if direction == StudyDirection.MAXIMIZE else -1
    return lambda value: -math.inf if math.isnan(value) else sign * value
