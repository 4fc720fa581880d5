"""The median rule (Golovin et al., "Google Vizier", KDD 2017, section 3.2.2) for trials with different batch sizes.

It compares evaluations at the same number of evaluation intervals, rounded. A trial with batches of 48 is scored after
528 examples when one with batches of 8 is scored after 504. Optuna's pruner needs exactly equal steps, and would find
nothing to compare.
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
    """Stops a trial whose best value so far is worse than the median of the values of complete trials at this point.

    `eval_interval` is the nominal number of examples between evaluations; with 1, only equal numbers of examples are
    compared. The other parameters are those of Optuna's MedianPruner: `n_startup_trials` complete trials before any
    trial is stopped, no decision before `n_warmup_steps` examples, one decision in `interval_steps` examples, and
    `n_min_trials` values for a median. A trial that has only reported NaN stops.
    """

    def __init__(self, spec: Mapping[str, Any]):
        self._spec = spec

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, given its reports so far."""
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
        """Return the last value that a trial reported at a point."""
        steps = [step for step in other.intermediate_values if self._point(step) == point]
        return other.intermediate_values[max(steps)] if steps else None
