"""What was probably meant by a wrong name: the nearest valid one. `foreign` knows the names of other programs."""

import difflib
from collections.abc import Iterable

CLOSE = 0.6
"""Similarity above which a name may be meant."""
LONGEST_NAME = 100
"""Characters. A longer name is hardly a typing error, and the cost of comparing is the product of both lengths."""


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the dotted names in `valid` that are closest to `name`, best first.

    The last part counts most, since users mostly misspell a key or leave out its group. Names of the same group come
    before those of others, unless only the group is wrong; those of others must be a few typing errors away.
    """
    if len(name) > LONGEST_NAME:
        return []
    # Sorted, so that equally close names come in a fixed order.
    scores = {candidate: _similarity(name, candidate) for candidate in sorted(set(valid) - {name})}
    close = [candidate for candidate, score in scores.items() if score >= CLOSE]
    group, _, last_part = name.rpartition(".")

    def rank(candidate: str) -> tuple[bool, float]:
        other_group, _, other_last_part = candidate.rpartition(".")
        return group != other_group and last_part != other_last_part, -scores[candidate]

    return sorted(close, key=rank)[:count]


def _similarity(name: str, candidate: str) -> float:
    """Return the similarity of two names, from 0 to 1; 0 if it is less than CLOSE."""
    (group, _, last_part), (other_group, _, other_last_part) = name.rpartition("."), candidate.rpartition(".")
    matcher = difflib.SequenceMatcher(None, last_part.lower(), other_last_part.lower())
    # The cheap upper bounds first: the similarity of the last parts bounds that of the names.
    if matcher.real_quick_ratio() < CLOSE or matcher.quick_ratio() < CLOSE or (same_last := matcher.ratio()) < CLOSE:
        return 0.0
    if group != other_group and not _is_typing_error(last_part.lower(), other_last_part.lower()):
        return 0.0
    same_group = difflib.SequenceMatcher(None, group.lower(), other_group.lower()).ratio()
    return same_last * (0.8 + 0.2 * same_group)


def _is_typing_error(name: str, candidate: str) -> bool:
    """Whether two names differ in no more than a third of their characters, or one contains the other."""
    name, candidate = name.replace("_", ""), candidate.replace("_", "")
    return name in candidate or candidate in name or _distance(name, candidate) <= max(len(name), len(candidate)) // 3


def _distance(name: str, candidate: str) -> int:
    """Return the characters that must be inserted, deleted or replaced to make one name the other (Levenshtein)."""
    above = list(range(len(candidate) + 1))
    for row, character in enumerate(name, 1):
        line = [row]
        for column, other in enumerate(candidate):
            line.append(min(above[column + 1] + 1, line[-1] + 1, above[column] + (character != other)))
        above = line
    return above[-1]


def hint(name: str, valid: Iterable[str]) -> str:
    """Return `nearest: a, b`, else all valid names, if there are any."""
    names = sorted(set(valid))
    if close := nearest(name, names):
        return f"nearest: {', '.join(close)}"
    return f"valid: {', '.join(names)}" if names else "nothing to choose from"
