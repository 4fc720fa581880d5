"""Draws half of the trials from the prior of the user, and the others by the sampler of the search.

A fixed share, so that a good prior helps from the first trial on, and a wrong one costs at most half of them.
"""

from collections.abc import Mapping

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from nlu.search.sampling import drawn_as, stable_seed
from nlu.search.schedulers.belief import Belief

SHARE = 0.5
"""the probability that a trial is drawn from the prior"""


class WithPrior(BaseSampler):
    """Draws a trial from the prior or by a sampler; its number decides which."""

    def __init__(self, sampler: BaseSampler, centers: Mapping[str, object], seed: int):
        """`centers` are the values of the prior."""
        self._sampler, self._prior, self._seed = sampler, Belief(centers), seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if self._trusts(trial) else self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        return {} if self._trusts(trial) else self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        if not self._trusts(trial):
            return self._sampler.sample_independent(study, trial, param_name, param_distribution)
        random = np.random.default_rng(stable_seed(self._seed, *drawn_as(trial), param_name, "prior"))
        return self._prior.value(param_name, param_distribution, random)

    def _trusts(self, trial: FrozenTrial) -> bool:
        """Whether a trial is drawn from the prior."""
        return np.random.default_rng(stable_seed(self._seed, trial.number, "source")).random() < SHARE
