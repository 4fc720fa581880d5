"""A test of a product of features: `make test` tries a sample with all pairs, `make test-thorough` every case."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Places = tuple[int, ...]


def sampled(names: str, *axes: Iterable[Any], together: int = 2) -> pytest.MarkDecorator:
    """Parametrize a test over the product of the axes, those outside of the sample marked as thorough.

    An axis has the values of the name in its place; a mapping gives its keys. `together`: how many values of different
    axes meet in the sample; with 1, each value occurs.
    """
    values = [list(axis) for axis in axes]
    chosen = sample([len(axis) for axis in values], together)
    cases = []
    for places in product(*(range(len(axis)) for axis in values)):
        marks = [] if places in chosen else [pytest.mark.thorough]
        cases.append(pytest.param(*(axis[place] for axis, place in zip(values, places, strict=True)), marks=marks))
    return pytest.mark.parametrize(names, cases)


def sample(sizes: Sequence[int], together: int) -> set[Places]:
    """Return tuples of places in axes of these sizes; any `together` places of different axes are in one of them.

    The same each time: always the tuple that adds most, and of several that whose places were used least.
    """
    every = list(product(*map(range, sizes)))
    left = {part for places in every for part in _parts(places, together)}
    used: Counter[tuple[int, int]] = Counter()
    chosen: set[Places] = set()
    while left:
        best = max(every, key=lambda places: (len(_parts(places, together) & left), -_uses(places, used)))
        chosen.add(best)
        left -= _parts(best, together)
        used.update(enumerate(best))
    return chosen


def _parts(places: Places, together: int) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(places), min(together, len(places))))


def _uses(places: Places, used: Counter[tuple[int, int]]) -> int:
    return sum(used[each] for each in enumerate(places))
