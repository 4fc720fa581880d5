"""ASHA with promotion (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2).

A trial is paused at each rung. A free slot continues a trial that is among the best 1 / factor of its rung, from the
highest rung down, or begins a new one. Unlike in HyperBand no trial is stopped for good, so a trial that later ones
show to be good continues.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nlu.search.schedulers.scheduler import PAUSED, Decision, Lengths, Standing

PROMOTED, NEW = "promoted", "new"
"""the rules of its decisions"""


class Asha:
    """Promotes trials from rung to rung: the first is `Lengths.first`, each other one `factor` times the one before."""

    def __init__(self, lengths: Lengths, factor: int):
        self._lengths, self._factor = lengths, factor
        self.rungs = rungs(lengths.first, lengths.part, factor)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Asha":
        """Return the scheduler for a specification, see `nlu.search.schedulers.choosing`."""
        return cls(Lengths.of(spec), spec["reduction_factor"])

    def decide(self, trials: Sequence[Standing], log: Sequence[Decision], *, may_begin: bool) -> Decision | None:
        """Return the trial that gets the next step, see `Scheduler`."""
        if (promoted := self.promoted(trials)) is not None:
            return promoted
        # Paused there by a former command, whose first rung was earlier.
        paused = (trial for trial in trials if trial.state == PAUSED and not trial.part_ends)
        early = next((trial for trial in paused if trial.examples < self.rungs[0]), None)
        if (early or may_begin) and self._lengths.affords(trials, early, self.rungs[0]):
            return Decision(self.rungs[0], None if early is None else early.number, why={"rule": NEW})
        return self._lengths.last_steps(trials)

    def promoted(self, trials: Sequence[Standing]) -> Decision | None:
        """Return the step of the trial that passes its rung, from the highest rung down; None if none does."""
        for level in reversed(range(len(self.rungs) - 1)):
            if (found := self._promoted(trials, level)) is not None:
                return Decision(self.rungs[level + 1], found.number, why={"rule": PROMOTED})
        return None

    def _promoted(self, trials: Sequence[Standing], level: int) -> Standing | None:
        """Return the best trial that is paused at a rung and may pass it."""
        until = self.rungs[level + 1]
        for trial in (ranked := self._ranked(trials, self.rungs[level]))[: len(ranked) // self._factor]:
            waits = trial.state == PAUSED and trial.examples < until and not trial.part_ends
            if waits and math.isfinite(trial.best) and self._lengths.affords(trials, trial, until):
                return trial
        return None

    @staticmethod
    def _ranked(trials: Sequence[Standing], at: int) -> list[Standing]:
        """Return the trials that came to a rung, best first."""
        came = [trial for trial in trials if trial.examples >= at]
        return sorted(came, key=lambda trial: (-trial.value_at(_first_from(trial, at)), trial.number))


def _first_from(trial: Standing, at: int) -> int:
    """Return the examples of the first evaluation at or after a rung, which comes with a whole batch."""
    return next(examples for examples, _ in trial.points if examples >= at)


def rungs(least: int, end: int, factor: int) -> list[int]:
    """Return the examples at which trials are compared; the last one is the end."""
    found = []
    # A rung just before the end is of no use.
    while least + least // factor <= end:
        found.append(least)
        least *= factor
    return [*found, end]
