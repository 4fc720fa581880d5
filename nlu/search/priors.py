"""Which trials are drawn from the prior of the user: the rule of PriorBand.

Mallik et al., "PriorBand: Practical Hyperparameter Optimization in the Age of Deep Learning", NeurIPS 2023,
arXiv:2306.12370, section 4. A trial whose bracket begins at rung r is drawn from the prior with the probability
factor^r / (1 + factor^r), so the prior decides more often about trials that run longer at least. Once a trial is
complete, a part of this share goes to neighbors of the best trial: prior and neighborhood share it by how probable they
make the best 1 / factor of the trials at the highest rung that has enough of them, weighted by rank. So a wrong prior
loses its influence. The paper draws all other trials evenly; here the sampler of the search draws them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from nlu.search.brackets import bracket_of, brackets
from nlu.search.goals import is_infeasible
from nlu.search.sampling import stable_seed
from nlu.search.schedulers.asha import Asha
from nlu.search.schedulers.belief import Belief

KEPT = 0.5
"""the probability that a neighbor of the best trial has its value of a parameter"""
Source = tuple[Belief, Sequence[str]]
"""what a trial is drawn from, and the parameters that may keep their center"""


class WithPrior(BaseSampler):
    """Draws trials from a sampler or from the prior, each by a rule that only depends on the trials so far."""

    def __init__(
        self, sampler: BaseSampler, centers: Mapping[str, object], spec: Mapping[str, Any], factor: int, seed: int
    ):
        """`centers` are the values of the prior, `spec` and `factor` are those of the pruner."""
        self._sampler, self._prior, self._spec, self._factor, self._seed = sampler, Belief(centers), spec, factor, seed
        self._brackets = brackets(spec)
        self._chosen: dict[int, Source | None] = {}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._source(study, trial.number) is not None:
            return {}
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        if self._source(study, trial.number) is not None:
            return {}
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        if (source := self._source(study, trial.number)) is None:
            return self._sampler.sample_independent(study, trial, param_name, param_distribution)
        belief, kept = source
        random = np.random.default_rng(stable_seed(self._seed, trial.number, param_name, "prior"))
        if param_name in kept and belief.has(param_name, param_distribution) and random.random() < KEPT:
            return belief.centers[param_name]
        return belief.value(param_name, param_distribution, random)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._sampler.after_trial(study, trial, state, values)

    def trust(self, study: str, number: int) -> float:
        """Return the probability with which a trial is drawn from the prior or near the best trial."""
        rung = bracket_of(self._brackets, study, number).number if self._brackets else 0
        weight = float(self._factor**rung)
        return weight / (1 + weight)

    def _source(self, study: Study, number: int) -> Source | None:
        """Return what a trial is drawn from; None: the sampler.

        Decided once for a trial, since the other trials may progress while its parameters are drawn.
        """
        if number not in self._chosen:
            self._chosen = {number: self._drawn_source(study, number)}
        return self._chosen[number]

    def _drawn_source(self, study: Study, number: int) -> Source | None:
        random = np.random.default_rng(stable_seed(self._seed, number, "source"))
        is_trusted, share = random.random() < self.trust(study.study_name, number), random.random()
        if not is_trusted:
            return None
        best = self._best_trials(study)
        if not best:
            return self._prior, ()
        near = Belief({**self._prior.centers, **best[0].params})
        if share < self.share_of_prior(near, best):
            return self._prior, ()
        # One parameter changes in any case: the best trial was tried already.
        names = sorted(best[0].params)
        del names[int(random.integers(len(names)))]
        return near, names

    def share_of_prior(self, near: Belief, best: Sequence[FrozenTrial]) -> float:
        """Return the share of the prior, beside that of the neighborhood of the best trial, by the best trials."""
        scores = []
        for belief in (self._prior, near):
            densities = [belief.log_density(trial.params, trial.distributions) for trial in best]
            # The best trial has the greatest weight. Logarithms, since products over many parameters underflow.
            scores.append(np.logaddexp.reduce([math.log(len(best) - at) + each for at, each in enumerate(densities)]))
        return float(1 / (1 + math.exp(min(scores[1] - scores[0], 700.0))))

    def _best_trials(self, study: Study) -> list[FrozenTrial]:
        """Return the best 1 / factor of the trials at the highest rung with enough of them, the best one first."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if trial.params and not is_infeasible(trial)]
        if not any(trial.state == TrialState.COMPLETE for trial in trials):
            return []
        sign = 1.0 if study.directions[0].name == "MAXIMIZE" else -1.0
        for rung in reversed(self._rungs()):
            valued = [(sign * value, trial) for trial in trials if math.isfinite(value := _value_at(trial, rung))]
            if len(valued) >= self._factor:
                ranked = sorted(valued, key=lambda pair: (-pair[0], pair[1].number))
                return [trial for _, trial in ranked[: len(ranked) // self._factor]]
        return []

    def _rungs(self) -> list[float]:
        """Return the examples at which trials are compared, in order; infinity is the end of a complete trial."""
        if self._spec["name"] == "asha":
            return [*Asha.of(self._spec).rungs[:-1], math.inf]
        return [*sorted({at for bracket in self._brackets for at in bracket.rungs}), math.inf]


def _value_at(trial: FrozenTrial, rung: float) -> float:
    """Return the first value of a trial from a rung on; NaN if it has not come so far."""
    if math.isinf(rung):
        return trial.values[0] if trial.state == TrialState.COMPLETE and trial.values else math.nan
    reached = [examples for examples in trial.intermediate_values if examples >= rung]
    return trial.intermediate_values[min(reached)] if reached else math.nan
