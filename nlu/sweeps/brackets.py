"""The brackets of HyperBand (Li et al., JMLR 18 (2018), 185): where trials are judged, and what that should cost.

Trials are dealt to brackets one by one, by a hash, in proportion to the brackets' budgets, and judged as they come
(ASHA, Li et al., MLSys 2020), so that none waits for another. Where we differ: see `places`. Successive halving is a
search with one bracket.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WITH_RUNGS = ("hyperband", "successive_halving")

FOLLOWED = 500
"""Trials at a rung after which the share of those that pass hardly changes any more."""


@dataclass(frozen=True)
class Bracket:
    """A bracket of HyperBand, or successive halving's only one."""

    number: int
    rungs: tuple[int, ...]
    """examples seen at which all but the best 1 / reduction_factor of the trials are stopped"""
    budget: int
    """trials dealt to it out of the sum of all budgets"""


def brackets(spec: Mapping[str, Any]) -> list[Bracket]:
    """Return the brackets of a pruner as `nlu.sweeps.pruning.build` takes it; none for one without rungs."""
    if spec["name"] not in WITH_RUNGS:
        return []
    low, high, factor = spec["min_resource"], spec["max_resource"], spec["reduction_factor"]
    if spec["name"] == "successive_halving":
        return [Bracket(0, _rungs(low, low * factor ** spec["min_early_stopping_rate"], high, factor), 1)]
    count = math.floor(math.log(high / low, factor)) + 1
    return [
        Bracket(
            number,
            _rungs(low, low * factor**number, high, factor),
            math.ceil(count * factor ** (count - 1 - number) / (count - number)),
        )
        for number in range(count)
    ]


def _rungs(low: int, first: int, high: int, factor: int) -> tuple[int, ...]:
    found = []
    # A rung that would be the end, had `low` not been rounded down to an integer, is none.
    while first + first // low <= high:
        found.append(first)
        first *= factor
    return tuple(found)


def bracket_of(found: Sequence[Bracket], study: str, number: int) -> Bracket:
    """Return the bracket to which a trial of a study is dealt, the same whoever asks and whenever."""
    drawn = binascii.crc32(f"{study}_{number}".encode()) % sum(bracket.budget for bracket in found)
    for bracket in found:
        drawn -= bracket.budget
        if drawn < 0:
            return bracket
    raise AssertionError("a number below the sum of all budgets falls into one of them")


def places(came: int, passed: int, factor: int) -> int:
    """Return among how many of the best at a rung a trial must be to pass it: the best 1 / factor, or the best alone.

    The latter where 1 / factor of them and one more have passed, about as many as of trials that come in no order, the
    first of which passes whatever it is. Without this bound far more pass of trials that get better and better, as they
    do under a sampler that learns, and a search costs more than it announced.

    Args:
        came: trials of the bracket that came to this rung, the one in question included.
        passed: how many of them passed it.
        factor: the reduction factor.
    """
    return max(1, came // factor) if passed <= came // factor else 1


def cost(bracket: Bracket, trials: float, high: int, factor: int) -> float:
    """Return the expected examples of a trial, as a share of a full run's `high`, of so many trials in a bracket.

    Values are taken to come in no order at any rung, and stopped trials to stop at their rung.
    """
    if not trials:
        return 1.0
    alive, examples, before = trials, 0.0, 0
    for at in (*bracket.rungs, high):
        examples += alive * (at - before)
        alive, before = _expected_to_pass(alive, factor), at
    return examples / high / trials


def _expected_to_pass(trials: float, factor: int) -> float:
    """Return how many of the trials at a rung are expected to pass it, where they arrive in no order.

    The place of the nth among those before it hangs on nothing but chance, so that how many have passed is a chain.
    """
    whole = min(round(trials), FOLLOWED)
    if not whole:
        return trials
    chances = [1.0]
    for came in range(1, whole + 1):
        after = [0.0] * (came + 1)
        for passed, chance in enumerate(chances):
            passes = chance * places(came, passed, factor) / came
            after[passed + 1] += passes
            after[passed] += chance - passes
        chances = after
    return sum(passed * chance for passed, chance in enumerate(chances)) * trials / whole
