"""All uses of private parts of Optuna, read in 5.0.0, with a fallback if a version lacks them."""

import copy
from collections.abc import Callable, Container, Mapping
from typing import cast

from optuna import storages
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nlu.search.steps import best_so_far, is_paused


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
