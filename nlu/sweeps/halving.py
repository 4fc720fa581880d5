"""The pruner of HyperBand and of successive halving, which keeps to the cost that was announced.

optuna's own passes a trial that is among the best 1 / reduction_factor of those before it, however many have passed.
This one also counts those (`nlu.sweeps.brackets.places`), and has no part in what a sampler sees.
"""

import math
from collections.abc import Sequence

from optuna.pruners import BasePruner
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from nlu.sweeps.brackets import Bracket, bracket_of, places

RUNG = "rung_"
"""prefix of the system attribute that a trial gets at a rung: a mapping of its `value` there and whether it `passed`"""


class HalvingPruner(BasePruner):
    """Stops a trial at the first rung of its bracket that it does not pass.

    What happened at a rung is an attribute of the trial and stands, so that any process of a search decides alike, and
    a job that was killed before it heard the answer hears the same one. A value that is not a number does not pass.
    With `bootstrap_count`, neither do the first so many trials at each rung.
    """

    def __init__(self, brackets: Sequence[Bracket], reduction_factor: int, bootstrap_count: int = 0):
        self._brackets, self._factor, self._bootstrap_count = brackets, reduction_factor, bootstrap_count

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, by the value that it reported last."""
        examples = trial.last_step
        if examples is None:
            return False
        bracket = bracket_of(self._brackets, study.study_name, trial.number)
        reached = [f"{RUNG}{rung}" for rung, at in enumerate(bracket.rungs) if at <= examples]
        return not all(self._passed(study, bracket, key, trial, trial.intermediate_values[examples]) for key in reached)

    def _passed(self, study: Study, bracket: Bracket, key: str, trial: FrozenTrial, value: float) -> bool:
        if key not in trial.system_attrs:
            passed = not math.isnan(value) and self._passes(study, bracket, key, trial.number, value)
            study._storage.set_trial_system_attr(trial._trial_id, key, {"value": value, "passed": passed})
            return passed
        return bool(trial.system_attrs[key]["passed"])

    def _passes(self, study: Study, bracket: Bracket, key: str, number: int, value: float) -> bool:
        others = [
            other.system_attrs[key]
            for other in study.get_trials(deepcopy=False)
            if other.number != number
            and key in other.system_attrs
            and bracket_of(self._brackets, study.study_name, other.number) == bracket
        ]
        if len(others) < self._bootstrap_count:
            return False
        sign = 1 if study.direction == StudyDirection.MAXIMIZE else -1
        better = sum(sign * other["value"] > sign * value for other in others)
        passed = sum(other["passed"] for other in others)
        return better < places(len(others) + 1, passed, self._factor)
