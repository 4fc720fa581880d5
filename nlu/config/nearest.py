"""Nearest valid names for a mistyped one, so that every refusal can say what was probably meant."""

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the dotted names in `valid` that are closest to `name`, best first.

    Most of the weight is on the last part: the usual slips are a misspelt key and a group that was left out.
    """
    scores = {candidate: _similarity(name, candidate) for candidate in sorted(set(valid) - {name})}
    close = [candidate for candidate, score in scores.items() if score >= 0.6]
    return sorted(close, key=lambda candidate: -scores[candidate])[:count]


def _similarity(name: str, candidate: str) -> float:
    (group, _, last_part), (other_group, _, other_last_part) = name.rpartition("."), candidate.rpartition(".")
    same_last = difflib.SequenceMatcher(None, last_part.lower(), other_last_part.lower()).ratio()
    same_group = difflib.SequenceMatcher(None, group.lower(), other_group.lower()).ratio()
    return same_last * (0.8 + 0.2 * same_group)


def hint(name: str, valid: Iterable[str]) -> str:
    """Return `nearest: a, b`, or all valid names when none is near, or that there are none."""
    names = sorted(set(valid))
    close = nearest(name, names)
    if close:
        return f"nearest: {', '.join(close)}"
    return f"valid: {', '.join(names)}" if names else "there is none to choose from"
