"""What is used of optuna that it does not promise to keep; read in 5.0.0. Where it is gone, it is done without."""

import io
import pickle
from typing import Any

from optuna import storages
from optuna.storages import BaseStorage, RDBStorage

from nlu.config.errors import UserError


def cached(storage: RDBStorage) -> BaseStorage:
    """Return a database that is not asked again for trials that have ended, as `optuna.create_study` wraps it itself.

    Without `_CachedStorage` every look at the trials reads all of them anew: slower, and the same.
    """
    wrapper = getattr(storages, "_CachedStorage", None)
    return wrapper(storage) if wrapper is not None else storage


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
