"""Sampling that does not notice whether a search was broken: each number is drawn by a generator of its own.

optuna's samplers draw from one stream, so that a search that is continued draws other values than an unbroken one.
Here a sampler is built anew for each trial and each parameter, seeded by a stable hash of (seed, number, parameter).
What a sampler learns is in the storage, not in its memory, so that nothing else is lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from nlu.sweeps.brackets import PRUNER, Bracket, bracket_of, brackets
from nlu.sweeps.optuna_private import guard_cma, levelled

Build = Callable[[int], BaseSampler]
SEEDS = 2**32


def stable_seed(*parts: Any) -> int:
    """Return a seed below 2**32 that depends on the parts alone."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS


class SeededByTrial(BaseSampler):
    """Draws every trial as if it were the first of its own sampler.

    `build(seed)` makes a sampler. With `one_sequence` the seed is the same for all trials: of samplers that number the
    points of one sequence in the storage (grid, quasi-Monte Carlo), which another seed would shuffle anew. What such a
    sequence does not cover, `alone(seed)` draws: the first trial, which shows a quasi-Monte Carlo sampler its space,
    and what depends on a condition.

    Samplers see pruned trials at the rung that they had reached (`_level_of`): trials of different batch sizes come to
    a rung at slightly different numbers of examples, and at a rung their values decide.
    """

    def __init__(self, build: Build, seed: int, *, one_sequence: bool = False, alone: Build | None = None):
        self._build, self._seed, self._one_sequence, self._alone = build, seed, one_sequence, alone
        guard_cma()

    def _of(self, *parts: Any) -> BaseSampler:
        return self._build(self._seed % SEEDS if self._one_sequence else stable_seed(self._seed, *parts))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._of(trial.number).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._of(trial.number).sample_relative(_seen(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        sampler = (
            self._alone(stable_seed(self._seed, trial.number, param_name))
            if self._alone
            else self._of(trial.number, param_name)
        )
        return sampler.sample_independent(_seen(study), trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._of(trial.number).before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Do nothing: of the samplers here only the grid's has something to do, which is to end `Study.optimize`."""


def _seen(study: Study) -> Study:
    """Return the study as samplers see it."""
    spec = study.user_attrs.get(PRUNER)
    return levelled(study, partial(_level_of, study.study_name, brackets(spec) if spec else []))


def _level_of(study_name: str, found: Sequence[Bracket], trial: FrozenTrial) -> int:
    """Return the last rung that a trial came to or, of a pruner without rungs, the number of its evaluations."""
    if not found:
        return len(trial.intermediate_values)
    examples = max(trial.intermediate_values)
    return max((at for at in bracket_of(found, study_name, trial.number).rungs if at <= examples), default=0)
