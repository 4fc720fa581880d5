"""A search whose trials are curves that are known already, so that it takes seconds; the decisions are those of nlu."""

import heapq
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from nlu.search import trial_steps
from nlu.search.deciding import build
from nlu.search.pruners import PRUNER, HalvingPruner
from nlu.search.sampling import SeededByTrial, drawing, stable_seed
from nlu.search.schedulers.scheduler import PAUSING, first_decision
from nlu.search.space import Space

METHODS = {
    "random": ("none", "random"), "tpe": ("none", "tpe"), "hyperband": ("hyperband", "tpe"),
    "hyperband+random": ("hyperband", "random"), "asha": ("asha", "tpe"), "asha+random": ("asha", "random"),
    "freeze_thaw": ("freeze_thaw", "random"),
}  # fmt: skip
"""pruner and sampler of each method"""


class Source(Protocol):
    """Curves of configurations. The evaluations of a trial are numbered from 1."""

    space: Space
    evaluations: int

    def curve(self, values: Mapping[str, object]) -> tuple[Sequence[float], Sequence[float]]:
        """Return what a trial reports after each evaluation, and what it is worth then; greater is better."""


class Simulation:
    """A search whose jobs take a unit of time for each evaluation."""

    def __init__(
        self, source: Source, name: str, method: str, seed: int, budget: int, jobs: int, trials: int, **settings: Any
    ):
        """`budget` is in whole trials; `settings` replace resources of the pruner."""
        self._source, self._jobs, self._trials = source, jobs, trials
        self._end = source.evaluations
        self._budget = budget * self._end
        pruner, sampler = METHODS[method]
        # With the same first configurations on all data sets, a mean over them would still be the luck of a few draws.
        seed = stable_seed(name, seed)
        kinds: dict[str, Any] = {"random": RandomSampler, "tpe": TPESampler}
        self._study = optuna.create_study(
            study_name=f"{name}_{seed}", direction="maximize",
            sampler=SeededByTrial(lambda own: kinds[sampler](seed=own), seed),
        )  # fmt: skip
        spec: dict[str, Any] = {"name": pruner}
        if pruner != "none":
            first = first_decision(1, self._end)
            spec |= {"min_resource": first, "interval": 1, "max_resource": self._end, "reduction_factor": 3} | settings
        # In memory: the storage has no other way to it.
        self._storage = self._study._storage
        self._study.set_user_attr(PRUNER, spec)
        self._pruner = None if pruner in PAUSING else HalvingPruner(spec, self._storage)
        self._scheduler = build({**spec, "max_examples": None, "parts": 1}, source.space, lambda key: None, seed)
        self._curves: dict[int, tuple[Sequence[float], Sequence[float]]] = {}
        self.best: list[float] = []
        """the best worth of any trial after each evaluation"""
        self.decision_s: list[float] = []
        self.steps = self.starts = 0
        """steps of all trials; those that start a process: their trial is not the one whose step has just ended"""
        self._asking: int | None = None

    def run(self) -> None:
        """Search until the budget is spent."""
        running: list[tuple[float, int, int]] = []
        now, launched = 0.0, 0
        while len(self.best) < self._budget:
            while len(running) < self._jobs and (number := self._next()) is not None:
                launched += 1
                heapq.heappush(running, (now + self._length(number), launched, number))
            if not running:
                break
            now, _, number = heapq.heappop(running)
            self._advance(number)
        self.best = [*self.best, *self.best[-1:] * (self._budget - len(self.best))][: self._budget]

    def _next(self) -> int | None:
        trials = self._study.get_trials(deepcopy=False)
        may_begin = len(trials) < self._trials
        if self._pruner is not None:
            return self._begun(self._study.ask().number) if may_begin else None
        began_s = time.process_time()
        log = trial_steps.log_of(trials)
        asking, self._asking = self._asking, None
        decision = self._scheduler.decide(
            trial_steps.standings(trials, maximize=True, asking=asking), log, may_begin=may_begin
        )
        self.decision_s.append(time.process_time() - began_s)
        if decision is None:
            return None
        self.steps += 1
        self.starts += decision.number is None or decision.number != asking
        name, step = trial_steps.step_of(decision, len(log), answers=True)
        if decision.number is not None:
            self._storage.set_trial_system_attr(decision.number, name, step)
            return decision.number
        fixed = {} if decision.values is None else {trial_steps.FIXED: dict(decision.values)}
        trial = create_trial(state=TrialState.RUNNING, system_attrs={name: step, **fixed})
        return self._begun(self._storage.create_new_trial(self._study._study_id, trial))

    def _begun(self, number: int) -> int:
        trial = self._storage.get_trial(number)
        draw = drawing(self._study, trial, trial.system_attrs.get(trial_steps.FIXED, {}))
        distributions: dict[str, BaseDistribution] = {}

        def suggest(key: str, distribution: BaseDistribution) -> object:
            distributions[key] = distribution
            return draw(key, distribution)

        values = self._source.space.draw(suggest, lambda key: None)
        for key, value in values.items():
            own = distributions[key].to_internal_repr(value)
            self._storage.set_trial_param(number, key, own, distributions[key])
        self._storage.set_trial_user_attr(number, trial_steps.VALUES, values)
        self._curves[number] = self._source.curve(values)
        return number

    def _length(self, number: int) -> int:
        """Return the evaluations until the next decision about a trial."""
        trial = self._storage.get_trial(number)
        if (until := trial_steps.until_of(trial)) is not None:
            return until - (trial.last_step or 0)
        return 1

    def _advance(self, number: int) -> None:
        trial = self._storage.get_trial(number)
        seen = trial.last_step or 0
        until = seen + self._length(number) if self._pruner is None else self._end
        reported, worth = self._curves[number]
        for at in range(seen + 1, until + 1):
            self._storage.set_trial_intermediate_value(number, at, float(reported[at - 1]))
            self.best.append(max(float(worth[at - 1]), self.best[-1] if self.best else -1e9))
            if self._pruner is not None and at < self._end:
                if self._pruner.prune(self._study, self._storage.get_trial(number)):
                    self._study.tell(number, state=TrialState.PRUNED)
                    return
        if until == self._end:
            self._study.tell(number, float(max(reported)))
        else:
            self._storage.set_trial_system_attr(number, *trial_steps.pause_of(until, self.steps))
            self._asking = number
