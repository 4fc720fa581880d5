"""Values that a key gives to classes: one for all, or one for each name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nlu.config.errors import UserError
from nlu.config.nearest import hint


def by_class(key: str, given: float | Mapping[Any, float], names: Sequence[str], otherwise: float) -> list[float]:
    """Return the value of each class of `names`; classes that `given` does not name get `otherwise`.

    Raises UserError with every class of `given` that is unknown.
    """
    if not isinstance(given, Mapping):
        return [float(given)] * len(names)
    # A command line and YAML yield a name such as 1 as a number.
    named = {str(name): float(value) for name, value in given.items()}
    require_known(key, named, names)
    return [named.get(name, otherwise) for name in names]


def require_known(key: str, given: Iterable[str], names: Sequence[str]) -> None:
    """Raise UserError with every class of a key that is unknown."""
    if unknown := [name for name in given if name not in names]:
        raise UserError(*(f"{key}: {name} is an unknown class; {hint(name, list(names))}" for name in unknown))
