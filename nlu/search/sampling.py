"""Sampling that gives the same values whether or not a search was interrupted.

The samplers of Optuna draw from one stream, so a continued search would draw other values than an uninterrupted one.
Here each parameter of each trial gets a new sampler, seeded by a stable hash of (seed, number, parameter). Nothing else
is lost, because samplers learn from the trials in the storage.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from nlu.search.optuna_private import forget_trials, levelled
from nlu.search.pruners import PRUNER, bracket_of, brackets
from nlu.search.schedulers.asha import Asha
from nlu.search.schedulers.encoding import contains
from nlu.search.schedulers.scheduler import ASHA, Suggest

Build = Callable[[int], BaseSampler]
SEEDS = 2**32


def stable_seed(*parts: object) -> int:
    """Return a seed below 2**32 that depends only on the parts."""
    # A separator that no part contains, so that different parts never give the same text.
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS


def grid_point(values: Mapping[str, Sequence[object]], seed: int, number: int) -> dict[str, object]:
    """Return the combination of the trial of this number, in an order that depends on the seed only."""
    sizes = [len(each) for each in values.values()]
    order = np.random.default_rng(stable_seed(seed, "grid")).permutation(math.prod(sizes))
    places = np.unravel_index(order[number], sizes)
    return {name: each[int(place)] for (name, each), place in zip(values.items(), places, strict=True)}


class SeededByTrial(BaseSampler):
    """Draws each trial with a new sampler.

    `build(seed)` returns a sampler. Samplers see a pruned trial at the last rung that it reached (`_rungs_of`). Trials
    with different batch sizes reach a rung at slightly different numbers of examples, but should be ranked by their
    values.
    """

    def __init__(self, build: Build, seed: int):
        self._build, self._seed = build, seed

    def _of(self, trial: FrozenTrial, *parts: object) -> BaseSampler:
        return self._build(stable_seed(self._seed, *drawn_as(trial), *parts))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, object]:
        return self._of(trial).sample_relative(_seen(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> object:
        sampler = self._of(trial, param_name)
        return sampler.sample_independent(_seen(study), trial, param_name, param_distribution)


AGAIN = "again"
"""system attribute of a trial that is drawn, never stored: how often it has been drawn before, if it has"""


def drawn_as(trial: FrozenTrial) -> list[int]:
    """Return the numbers that seed the draws of a trial."""
    return [trial.number, *([trial.system_attrs[AGAIN]] if AGAIN in trial.system_attrs else [])]


def drawing(study: Study, trial: FrozenTrial, given: Mapping[str, object], again: int = 0) -> Suggest:
    """Return a function that draws the parameters of a trial as `optuna.Trial` does, without writing them.

    `given` are the values of parameters that are not drawn, where their distribution has them. `again` is how often the
    trial has been drawn before; each time other values are drawn.
    """
    forget_trials(study)
    trial, sampler = copy.copy(trial), study.sampler
    if again:
        trial.system_attrs = {**trial.system_attrs, AGAIN: again}

    @cache
    def together() -> dict[str, Any]:
        return sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial))

    def suggest(name: str, distribution: Any) -> object:
        if name in given and contains(distribution, given[name]):
            return given[name]
        if distribution.single():
            return distribution.choices[0] if isinstance(distribution, CategoricalDistribution) else distribution.low
        if name in together() and contains(distribution, together()[name]):
            return together()[name]
        return sampler.sample_independent(study, trial, name, distribution)

    return suggest


def _seen(study: Study) -> Study:
    """Return the study as samplers see it."""
    spec, name = study.user_attrs.get(PRUNER, {}), study.study_name

    def level_of(trial: FrozenTrial) -> int:
        """Return the last rung that a trial reached; for a pruner without rungs, the number of its evaluations."""
        rungs = _rungs_of(spec, name, trial.number)
        if rungs is None:
            return len(trial.intermediate_values)
        return max((at for at in rungs if at <= max(trial.intermediate_values)), default=0)

    return levelled(study, level_of)


def _rungs_of(spec: Mapping[str, Any], study_name: str, number: int) -> Sequence[int] | None:
    """Return the rungs of a trial, None for a pruner without rungs."""
    if spec.get("name") == ASHA:
        return Asha.of(spec).rungs
    found = brackets(spec)
    return bracket_of(found, study_name, number).rungs if found else None
