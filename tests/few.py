"""Which parameters of a test `make test` tries; `make test-thorough` tries every one."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def first(number: int, parameters: Iterable[Any]) -> list[Any]:
    """Return all parameters, those after the first `number` marked as thorough; a tuple is a set of arguments."""
    return [parameter if place < number else _thorough(parameter) for place, parameter in enumerate(parameters)]


def only(chosen: Iterable[Any], parameters: Iterable[Any]) -> list[Any]:
    """Return all parameters, those that are not among `chosen` marked as thorough."""
    chosen, parameters = list(chosen), list(parameters)
    assert all(one in parameters for one in chosen)
    return [one if one in chosen else _thorough(one) for one in parameters]


def sampled(names: str, *axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over the product of the axes; not thorough are as many cases as show each value once."""
    values = [list(axis) for axis in axes]
    chosen = [tuple(axis[place % len(axis)] for axis in values) for place in range(max(map(len, values)))]
    return pytest.mark.parametrize(names, only(chosen, product(*values)))


def _thorough(parameter: Any) -> Any:
    values = parameter if isinstance(parameter, tuple) else (parameter,)
    return pytest.param(*values, marks=pytest.mark.thorough)
