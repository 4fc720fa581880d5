"""The median rule (Golovin et al., "Google Vizier", KDD 2017, section 3.2.2) over trials of unlike batches.

Evaluations are compared that are as many intervals of examples into their trials, rounded. A trial in batches of 48 is
scored after 528 examples where one in batches of 8 is after 504: optuna's own rule, which asks for exactly equal steps,
would find nothing to compare.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from nlu.sweeps.halving import more_is_better


class MedianPruner(BasePruner):
    """Stops a trial whose best value so far is worse than the median of what complete trials had at this point.

    `eval_interval` is the number of examples from one evaluation to the next, as it is meant; 1 compares equal numbers
    of examples only. The other parameters are those of optuna's pruner of this name: `n_startup_trials` complete trials
    before anything is stopped, no decision up to `n_warmup_steps` examples, one decision within `interval_steps`
    examples, and `n_min_trials` values to take the median of. Of a trial that has no number to show there is nothing to
    wait for: it stops.
    """

    def __init__(self, spec: Mapping[str, Any]):
        self._spec = spec

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, by what it reported up to now."""
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        examples = trial.last_step
        if examples is None or not complete or len(complete) < self._spec["n_startup_trials"]:
            return False
        if not self._is_time(trial, examples):
            return False
        goodness = more_is_better(study.direction)
        best = max(map(goodness, trial.intermediate_values.values()))
        if best == -math.inf:
            return True
        found = [value for other in complete if (value := self._value_at(other, self._point(examples))) is not None]
        values = [goodness(value) for value in found if not math.isnan(value)]
        if not values or len(values) < self._spec["n_min_trials"]:
            return False
        return best < statistics.median(values)

    def _is_time(self, trial: FrozenTrial, examples: int) -> bool:
        """Whether this is the trial's first report in its interval of decisions."""
        warmup, interval = self._spec["n_warmup_steps"], self._spec["interval_steps"]
        if examples < warmup:
            return False
        began = warmup + (examples - warmup) // interval * interval
        return not any(began <= step < examples for step in trial.intermediate_values)

    def _point(self, examples: int) -> int:
        interval = self._spec["eval_interval"]
        return (2 * examples + interval) // (2 * interval)

    def _value_at(self, other: FrozenTrial, point: int) -> float | None:
        """What a trial had at a point of its course: its last report there."""
        steps = [step for step in other.intermediate_values if self._point(step) == point]
        return other.intermediate_values[max(steps)] if steps else None
