"""What was probably meant by a wrong name: the nearest valid one. `foreign` knows the names of other programs."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from nlu.config.errors import UserError

CLOSE, CLOSE_ELSEWHERE = 0.6, 0.75
"""Similarity of the last parts from which a name of the same group, or of another one, may be meant."""
LONGEST_NAME = 100
"""Characters. A longer name is hardly a typing error, and the cost of comparing is the product of both lengths."""


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the dotted names in `valid` that are closest to `name`, best first.

    The last part counts, since users mostly misspell a key or leave out its group. Names of the same group come before
    those of others, unless only the group is wrong.
    """
    if len(name) > LONGEST_NAME:
        return []
    group, _, last = name.rpartition(".")
    ranks: dict[str, tuple[bool, float]] = {}
    # Sorted, so that equally close names come in a fixed order.
    for candidate in sorted(set(valid) - {name}):
        other_group, _, other_last = candidate.rpartition(".")
        matcher = difflib.SequenceMatcher(None, last.lower(), other_last.lower())
        least = CLOSE if group == other_group else CLOSE_ELSEWHERE
        # The cheap upper bounds first.
        if matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least and matcher.ratio() >= least:
            same_group = difflib.SequenceMatcher(None, group.lower(), other_group.lower()).ratio()
            is_elsewhere = group != other_group and last != other_last
            ranks[candidate] = is_elsewhere, -matcher.ratio() * (0.8 + 0.2 * same_group)
    return sorted(ranks, key=ranks.__getitem__)[:count]


def hint(name: str, valid: Iterable[str]) -> str:
    """Return `nearest: a, b`, else all valid names, if there are any."""
    names = sorted(set(valid))
    if close := nearest(name, names):
        return f"nearest: {', '.join(close)}"
    return f"valid: {', '.join(names)}" if names else "nothing to choose from"


def by_class(key: str, given: float | Mapping[str | int, float], names: Sequence[str], otherwise: float) -> list[float]:
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
