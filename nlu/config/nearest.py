"""What was probably meant by a wrong name: the nearest valid one. `foreign` knows the names of other programs."""

import difflib
from collections.abc import Iterable

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
