"""What ends a search besides n_trials: hours, and a plateau of the best value.

Both stop new trials; those that run end as usual, and a search that pauses trials completes its best one. What was
used is kept in the study, so a search that was killed goes on counting.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from nlu.sweeps.goals import is_infeasible
from nlu.sweeps.steps import PART_ENDS, value_at_end

from ._plan import SearchPlan

USED = "used"
"""user attribute of a study: the seconds of all its commands, its best values, and the cost up to the last of them in
whole trials"""
WRITTEN_EVERY_S = 60.0


class Limits:
    """Follows time and best value of a search."""

    def __init__(self, plan: SearchPlan):
        self._plan, self.is_over = plan, False
        self._max_hours, self._patience = plan.settings["max_hours"], plan.settings["until_plateau"]
        kept: Mapping[str, Any] = plan.study.user_attrs.get(USED, {})
        self._seconds: float = kept.get("seconds", 0.0)
        # Former versions kept one value.
        best = {0: each} if isinstance(each := kept.get("best"), float | int) else each or {}
        self._best: dict[int, float] = {int(ended): value for ended, value in best.items()}
        """the best value by the folds and seeds that had ended: only values with as many can be compared"""
        self._cost: float = kept.get("cost", 0.0)
        self._counted_s = self._written_s = time.monotonic()

    def reached(self, trials: Sequence[FrozenTrial]) -> str | None:
        """Return the sentence about a limit that is reached, from when on the search `is_over`; None before."""
        if self._max_hours is None and self._patience is None:
            return None
        self.count()
        cost, best = self._spent(trials), self._best_of(trials)
        better = {ended: value for ended, value in best.items() if value > self._best.get(ended, -math.inf)}
        if better:
            # The first mean over so many folds is no progress, since it has none to be compared with.
            if better.keys() & self._best.keys() or not self._best:
                self._cost = cost
            self._best |= better
            self._write()
        sentence = self._sentence(cost)
        self.is_over = sentence is not None
        return sentence

    def count(self, *, is_end: bool = False) -> None:
        """Add the time since the last call; it is written once a minute and at the end of a command."""
        if self._max_hours is None and self._patience is None:
            return
        now_s = time.monotonic()
        self._seconds += now_s - self._counted_s
        self._counted_s = now_s
        if is_end or now_s - self._written_s > WRITTEN_EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written_s = self._counted_s
        used = {"seconds": round(self._seconds, 1), "best": self._best, "cost": self._cost}
        self._plan.study.set_user_attr(USED, used)

    def _sentence(self, cost: float) -> str | None:
        if self._max_hours is not None and self._seconds >= 3600 * self._max_hours:
            return f"hydra.sweeper.max_hours={self._max_hours:g} is over: no new trial begins"
        if self._patience is not None and cost - self._cost >= self._patience:
            what = "the examples of " if self._counts_examples else ""
            return (
                f"no better value in {what}{self._patience:g} trials (hydra.sweeper.until_plateau): no new trial begins"
            )
        return None

    @property
    def _counts_examples(self) -> bool:
        return "max_resource" in self._plan.spec

    def _spent(self, trials: Sequence[FrozenTrial]) -> float:
        """Return what the trials have cost, in whole trials; without a pruner that counts examples, in ended trials."""
        if self._counts_examples:
            return sum(trial.last_step or 0 for trial in trials) / float(self._plan.spec["max_resource"])
        return sum(trial.state.is_finished() for trial in trials)

    def _best_of(self, trials: Sequence[FrozenTrial]) -> dict[int, float]:
        """Return the best value of any evaluation, greater is better, by the folds and seeds that had ended.

        Until the first one ends, it is that of an evaluation; then of the means at their ends.
        """
        sign = 1.0 if self._plan.direction == "maximize" else -1.0
        trials = [trial for trial in trials if not is_infeasible(trial)]
        # Whether a trial keeps its constraints is known at its end.
        may_count = [trial for trial in trials if not self._plan.goals.constraints]
        values = [pair for trial in may_count for pair in _reported(trial)]
        values += [
            (len(trial.user_attrs.get(PART_ENDS, ())), trial.value)
            for trial in trials
            if trial.state == TrialState.COMPLETE and trial.value is not None
        ]
        best: dict[int, float] = {}
        for ended, value in values:
            if math.isfinite(value):
                best[ended] = max(sign * value, best.get(ended, -math.inf))
        return best


def _reported(trial: FrozenTrial) -> Iterator[tuple[int, float]]:
    """Yield the values that a trial has reported, each with the folds and seeds that had ended."""
    ends = trial.user_attrs.get(PART_ENDS, [])
    for at, value in trial.intermediate_values.items():
        if not ends or at <= ends[0]:
            yield 0, value
    # Within a later one, a report is the mean of what has ended and of a single evaluation.
    for ended, end in enumerate(ends[1:], 1):
        if (mean := value_at_end(trial, end)) is not None:
            yield ended, mean
