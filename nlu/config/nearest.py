"""Nearest valid names for a mistyped one, so that every refusal can say what was probably meant."""

import difflib
from collections.abc import Iterable

from nlu.config.elsewhere import key_elsewhere

CLOSE = 0.6
"""likeness from which on a name may be meant"""
LONGEST_NAME = 100
"""characters; a longer one is no slip, and comparing takes the product of both lengths"""


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the dotted names in `valid` that are closest to `name`, best first.

    Most of the weight is on the last part: the usual slips are a misspelt key and a group that was left out.
    """
    if len(name) > LONGEST_NAME:
        return []
    scores = {candidate: _similarity(name, candidate) for candidate in sorted(set(valid) - {name})}
    close = [candidate for candidate, score in scores.items() if score >= CLOSE]
    return sorted(close, key=lambda candidate: -scores[candidate])[:count]


def _similarity(name: str, candidate: str) -> float:
    """Return how alike two names are, from 0 to 1; 0 where it is less than CLOSE."""
    (group, _, last_part), (other_group, _, other_last_part) = name.rpartition("."), candidate.rpartition(".")
    matcher = difflib.SequenceMatcher(None, last_part.lower(), other_last_part.lower())
    # The whole is at most what the last parts give, and that at most what is had for less.
    if matcher.real_quick_ratio() < CLOSE or matcher.quick_ratio() < CLOSE or (same_last := matcher.ratio()) < CLOSE:
        return 0.0
    same_group = difflib.SequenceMatcher(None, group.lower(), other_group.lower()).ratio()
    return same_last * (0.8 + 0.2 * same_group)


def hint(name: str, valid: Iterable[str]) -> str:
    """Return `nearest: a, b`, or all valid names when none is near, or that there are none."""
    names = sorted(set(valid))
    close = nearest(name, names)
    if close:
        return f"nearest: {', '.join(close)}"
    return f"valid: {', '.join(names)}" if names else "there is none to choose from"


def key_hint(key: str, valid: Iterable[str]) -> str:
    """Return the hint for a key of a configuration; what a name of another program is called here, if it is one."""
    return key_elsewhere(key) or hint(key, valid)
