"""What is used of optuna that it does not promise to keep; read in 5.0.0. Where it is gone, it is done without."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any, cast

from optuna import storages
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from nlu.config.errors import UserError


def cached(storage: RDBStorage) -> BaseStorage:
    """Return a database that is not asked again for trials that have ended, as `optuna.create_study` wraps it itself.

    Without `_CachedStorage` every look at the trials reads all of them anew: slower, and the same.
    """
    wrapper = getattr(storages, "_CachedStorage", None)
    return wrapper(storage) if wrapper is not None else storage


class _Levelled:
    """A study in whose pruned trials the last value stands at a level instead of at its number of examples."""

    def __init__(self, study: Study, level_of: Callable[[FrozenTrial], int]):
        self._study, self._level_of = study, level_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def _get_trials(self, *arguments: Any, **named: Any) -> list[FrozenTrial]:
        return [self._levelled(trial) for trial in self._study._get_trials(*arguments, **named)]

    def _levelled(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.state != TrialState.PRUNED or not trial.intermediate_values:
            return trial
        # Trials may be those that the storage keeps.
        trial = copy.copy(trial)
        trial.intermediate_values = {self._level_of(trial): trial.intermediate_values[max(trial.intermediate_values)]}
        return trial


def levelled(study: Study, level_of: Callable[[FrozenTrial], int]) -> Study:
    """Return the study as a sampler is to see it: the last value of each pruned trial stands at `level_of(trial)`.

    Samplers rank pruned trials by their last step first, so one more example would outweigh any value. They read trials
    by `Study._get_trials`; where that is gone, they see the study as it is.
    """
    return cast(Study, _Levelled(study, level_of)) if hasattr(study, "_get_trials") else study


_OF_CMA = {
    "cmaes._cma": {"CMA"},
    "cmaes._cmawm": {"CMAwM"},
    "cmaes._sepcma": {"SepCMA"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
}
"""by module, what the state of CMA-ES consists of: numbers only; read in cmaes 0.13.1 and numpy 2"""


class _StateUnpickler(pickle.Unpickler):
    """Reads the state of CMA-ES, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _OF_CMA.get(module, ()):
            return super().find_class(module, name)
        raise UserError(
            f"the study holds a state of CMA-ES that names {module}.{name}, which is no part of one; it was not "
            "loaded, since it could run any command; find out who writes to this storage, and begin another study"
        )


class _CarefulPickle:
    """Stands for `pickle` in Optuna's module of CMA-ES, which keeps its state in the study, where others may write."""

    dumps = staticmethod(pickle.dumps)

    @staticmethod
    def loads(state: bytes) -> Any:
        """Return the state."""
        return _StateUnpickler(io.BytesIO(state)).load()


def guard_cma() -> None:
    """Have Optuna load nothing from a study but the state of CMA-ES, in this process."""
    from optuna.samplers import _cmaes

    if hasattr(_cmaes, "pickle"):
        _cmaes.pickle = _CarefulPickle  # type: ignore[assignment]
