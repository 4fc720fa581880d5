"""The contract of a scheduler, which decides at each free slot which trial gets the next step.

A step is a number of examples that a trial may see before the search decides again. At its end the trial is paused,
unless it gets the next step too. A scheduler is a pure function of the trials and of its earlier decisions, so a search
that was killed decides alike.

ASHA with promotion (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2).

A trial is paused at each rung. A free slot continues a trial that is among the best 1 / factor of its rung, from the
highest rung down, or begins a new one. Unlike in HyperBand no trial is stopped for good, so a trial that later ones
show to be good continues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


RUNNING, PAUSED, ENDED, FAILED, STOPPED = "running", "paused", "ended", "failed", "stopped"
"""the states of a trial; a pruner stopped it for good"""
PAUSING = ASHA, FREEZE_THAW = ("asha", "freeze_thaw")
"""the choices of hydra.sweeper.pruner that pause trials"""
Suggest = Callable[[str, "BaseDistribution"], object]
Draw = Callable[[Suggest], Mapping[str, object]]
"""draws a configuration: calls the function for each parameter that is active, as `nlu.search.space.Space.draw` does"""


@dataclass(frozen=True)
class Standing:
    """Where a trial stands."""

    number: int
    values: Mapping[str, object]
    """its drawn parameters"""
    points: Sequence[tuple[int, float]]
    """examples seen and value of each evaluation, in order; greater is better, and the value may be NaN"""
    until: int
    """the examples after which it is decided about again"""
    state: str
    part_ends: Sequence[int] = ()
    """the examples at which its folds or seeds have ended; from the first one on, values are means over them"""
    asks: bool = False
    """whether its job waits for this decision, so that its next step starts no process"""

    @property
    def examples(self) -> int:
        """The examples that it has seen up to its last evaluation."""
        return max((self.points[-1][0] if self.points else 0, *self.part_ends))

    @cached_property
    def best(self) -> float:
        """Its best value so far, or the mean over the folds that have ended; -inf without a finite value."""
        return self.value_at(self.examples)

    def value_at(self, examples: int) -> float:
        """Return its best value up to a number of examples; from the first fold's end on, the mean over its folds."""
        found = [value for at, value in self.points if at <= examples]
        if self.part_ends and examples >= self.part_ends[0]:
            found = found[-1:]
        return max(filter(math.isfinite, found), default=-math.inf)


@dataclass(frozen=True)
class Decision:
    """A trial that gets a step."""

    until: int
    """the examples after which it is decided about again"""
    number: int | None = None
    """the trial; None: a new one"""
    values: Mapping[str, object] | None = None
    """the parameters of a new trial; None: the sampler of the search draws them"""
    why: Mapping[str, Any] = field(default_factory=dict)
    """what decided, for the table of decisions; also what later decisions read again"""


class Scheduler(Protocol):
    """Decides which trial gets a free slot."""

    def decide(self, trials: Sequence[Standing], log: Sequence[Decision], *, may_begin: bool) -> Decision | None:
        """Return the trial that gets the next step, None if none should before a running one is paused or has ended.

        `log` has all earlier decisions in order. With `may_begin=False` no new trial begins.
        """


FIRST_EVALUATIONS, LARGEST_SHARE = 3, 5
"""a trial is first decided about after so many evaluations, or fewer if they are more than a fifth of it: early ones
say little about the last (benchmarks/RESULTS.md)"""


def first_decision(interval: int, part: int) -> int:
    """Return the examples before the first decision, of trials that are scored at each interval."""
    return max(1, min(FIRST_EVALUATIONS, part // LARGEST_SHARE // interval)) * interval


@dataclass(frozen=True)
class Lengths:
    """The lengths of trials, in examples seen."""

    least: int
    """between two evaluations"""
    first: int
    """before a trial is decided about for the first time"""
    end: int
    """of a whole trial, with all its folds and seeds"""
    part: int
    """of one fold or seed; `end` without them"""
    budget: float = math.inf
    """of all trials together"""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Lengths:
        """Read them from the specification of a pruner."""
        budget, end = spec.get("max_examples"), spec["max_resource"]
        part = end // spec.get("parts", 1)
        return cls(spec["interval"], spec["min_resource"], end, part, math.inf if budget is None else budget)

    def stop(self, trial: Standing | None, steps: int) -> int:
        """Return where a trial (None: a new one) is decided about again: after some evaluations, or a whole fold."""
        if trial is not None and trial.part_ends:
            return trial.examples + 1
        # Multiples, since an evaluation comes with the first whole batch after one.
        done = 0 if trial is None else trial.examples // self.least
        found = (done + steps) * self.least
        return self.beyond(trial, self.part if found + self.least > self.part else found)

    def beyond(self, trial: Standing | None, until: int) -> int:
        """Return `until`, or, if a trial has seen as many examples, its end: the step would never be taken."""
        if trial is None or until > trial.examples:
            return until
        return max(self.end, trial.examples) + 1

    def spent(self, trials: Sequence[Standing]) -> int:
        """Return the examples of all trials once all running ones have reached their next decision."""
        return sum(max(trial.until, trial.examples) if trial.state == RUNNING else trial.examples for trial in trials)

    def left(self, trials: Sequence[Standing]) -> float:
        """Return the rest of the budget once all running trials have reached their next decision."""
        return self.budget - self.spent(trials)

    def affords(self, trials: Sequence[Standing], trial: Standing | None, until: int) -> bool:
        """Whether a trial (None: a new one) may get a step: whichever trial is the best afterwards can still end."""
        if math.isinf(self.budget):
            return True
        left, seen = self.left(trials), 0 if trial is None else trial.examples
        open_ones = [each for each in trials if each.state in (PAUSED, RUNNING)]
        ended = (each for each in trials if each.state == ENDED)
        best = max([*open_ones, *ended], key=lambda each: (each.best, -each.number), default=None)
        # A trial that runs may be the best when its step has ended. One that has ended needs nothing.
        others = [each for each in open_ones if each is not trial and (each is best or each.state == RUNNING)]
        needs = [self.end - max(each.until if each.state == RUNNING else 0, each.examples) for each in others]
        return self.end - seen <= left and until - seen + max(needs, default=0) <= left

    def last_steps(self, trials: Sequence[Standing]) -> Decision | None:
        """Return the decision once nothing else is affordable: the best trial runs to its end.

        With folds it runs fold by fold, since its mean may fall below the value of another trial. None if the best
        trial has ended, or while other trials run.
        """
        alive = [trial for trial in trials if trial.state in (PAUSED, ENDED) and math.isfinite(trial.best)]
        if not alive or any(trial.state == RUNNING for trial in trials):
            return None
        left = self.left(trials)
        ends = [trial for trial in alive if trial.state == ENDED or self.end - trial.examples <= left]
        best = max(ends or alive, key=lambda trial: (trial.best, -trial.number))
        if best.state == ENDED:
            return None
        until = self.stop(best, 1) if best.part_ends else self.beyond(best, self.part)
        return Decision(until, best.number, why={"rule": "last"})


PROMOTED, NEW = "promoted", "new"
"""the rules of its decisions"""


class Asha:
    """Promotes trials from rung to rung: the first is `Lengths.first`, each other one `factor` times the one before."""

    def __init__(self, lengths: Lengths, factor: int):
        self._lengths, self._factor = lengths, factor
        self.rungs = rungs(lengths.first, lengths.part, factor)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Asha:
        """Return the scheduler for a specification, see `nlu.search.deciding`."""
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
