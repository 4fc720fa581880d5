"""All uses of private parts of Optuna, read in 5.0.0, with a fallback if a version lacks them.

Sampling that gives the same values whether or not a search was interrupted.

The samplers of Optuna draw from one stream, so a continued search would draw other values than an uninterrupted one.
Here each parameter of each trial gets a new sampler, seeded by a stable hash of (seed, number, parameter). Nothing else
is lost, because samplers learn from the trials in the storage.

Draws half of the trials from the prior of the user, and the others by the sampler of the search.

A fixed share, so that a good prior helps from the first trial on, and a wrong one costs at most half of them.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
from optuna import storages
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nlu.search.pruners import PRUNER, bracket_of, brackets
from nlu.search.schedulers.encoding import Belief, contains
from nlu.search.schedulers.scheduler import ASHA, Asha, Suggest
from nlu.search.trial_steps import best_so_far, is_paused


def cached(storage: RDBStorage) -> BaseStorage:
    """Return a database with a cache of finished trials, as `optuna.create_study` does.

    Without `_CachedStorage` each access reads all trials again: slower, with the same result.
    """
    wrapper = getattr(storages, "_CachedStorage", None)
    return wrapper(storage) if wrapper is not None else storage


class _Levelled:
    """A study whose pruned trials have their best value at a level instead of at their number of examples, and whose
    paused trials are pruned ones."""

    def __init__(self, study: Study, level_of: Callable[[FrozenTrial], int]):
        self._study, self._level_of = study, level_of

    @property
    def direction(self) -> StudyDirection:
        """That of the reports. Optuna's TPE asks for it, to rank pruned trials; a study of several has none."""
        return self._study.directions[0]

    def __getattr__(self, name: str) -> object:
        return getattr(self._study, name)

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        trials = self._study._get_trials(deepcopy=deepcopy, states=None, use_cache=use_cache)
        shown = map(self._levelled, trials)
        return [trial for trial in shown if states is None or trial.state in states]

    def _levelled(self, trial: FrozenTrial) -> FrozenTrial:
        if not trial.intermediate_values or not (trial.state == TrialState.PRUNED or is_paused(trial)):
            return trial
        value = best_so_far(trial, maximize=self.direction == StudyDirection.MAXIMIZE)
        # The storage may hold the same objects.
        trial = copy.copy(trial)
        trial.state = TrialState.PRUNED
        trial.intermediate_values = {self._level_of(trial): value}
        return trial


def levelled(study: Study, level_of: Callable[[FrozenTrial], int]) -> Study:
    """Return the study for a sampler, with the best value of each pruned trial at `level_of(trial)`.

    Samplers rank pruned trials first by their last step, so one more example would outweigh any value. They read trials
    by `Study._get_trials`. In a version without that, they get the study itself.
    """
    return cast(Study, _Levelled(study, level_of)) if hasattr(study, "_get_trials") else study


def write_constraints(storage: BaseStorage, trial_id: int, violations: Mapping[str, float]) -> None:
    """Write by how much a trial breaks each constraint, as `Trial.set_constraint` does; samplers read it."""
    for name, value in violations.items():
        storage.set_trial_system_attr(trial_id, f"constraints:{name}", value)


def forget_trials(study: Study) -> None:
    """Make samplers read the trials of a study again, as `Study.ask` does; they keep what they read for one trial.

    A version without this memory always reads them.
    """
    if hasattr(study, "_thread_local"):
        study._thread_local.cached_all_trials = None


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
