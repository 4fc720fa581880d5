"""What is used of optuna that it does not promise to keep; read in 5.0.0. Where it is gone, it is done without."""

from optuna import storages
from optuna.storages import BaseStorage, RDBStorage


def cached(storage: RDBStorage) -> BaseStorage:
    """Return a database that is not asked again for trials that have ended, as `optuna.create_study` wraps it itself.

    Without `_CachedStorage` every look at the trials reads all of them anew: slower, and the same.
    """
    wrapper = getattr(storages, "_CachedStorage", None)
    return wrapper(storage) if wrapper is not None else storage
