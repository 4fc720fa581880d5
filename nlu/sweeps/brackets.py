"""The brackets of HyperBand (Li et al., JMLR 18 (2018), 185): where trials are judged, who passes, what it should cost.

Trials are dealt to brackets one by one, by a hash, in proportion to the brackets' budgets, and judged as they come
(ASHA, Li et al., MLSys 2020), so that none waits for another. Where we differ: see `Rung`. Successive halving is a
search with one bracket.
"""

from __future__ import annotations

import binascii
import math
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRUNER = "pruner"
"""user attribute of a study: the pruner as `nlu.sweeps.pruning.build` takes it"""
WITH_RUNGS = ("hyperband", "successive_halving")
"""the pruners that judge trials at rungs"""
SIMULATED_TRIALS = 3000
"""trials that `cost` follows, over as many searches as that takes"""


@dataclass(frozen=True)
class Bracket:
    """A bracket of HyperBand, or successive halving's only one."""

    number: int
    rungs: tuple[int, ...]
    """examples seen at which trials are judged"""
    budget: int
    """trials dealt to it out of the sum of all budgets"""


class Rung:
    """What the trials of a bracket had when they came to one of its rungs, where more is better.

    A trial passes if it is among the best 1 / factor so far, or the best. Once that share of all have passed and one
    more, only what is better than everything before passes. That is about as many as pass of trials that come in no
    order. Without this bound far more would of trials that get better and better, as they do under a sampler that
    learns, and a search would cost more than it announced.
    """

    def __init__(self, values: Iterable[float] = (), passed: int = 0):
        self._values, self._passed = sorted(values), passed

    def lets_pass(self, value: float, factor: int, bootstrap_count: int) -> bool:
        """Return whether a trial passes, which comes after these. The first `bootstrap_count` never do."""
        came = len(self._values)
        if came < bootstrap_count:
            return False
        share = (came + 1) // factor
        if self._passed > share:
            return bisect_left(self._values, value) == came
        return came - bisect_right(self._values, value) < max(1, share)

    def add(self, value: float, passed: bool) -> None:
        """Count a trial that came."""
        insort(self._values, value)
        self._passed += passed


def brackets(spec: Mapping[str, Any]) -> list[Bracket]:
    """Return the brackets of a pruner as `nlu.sweeps.pruning.build` takes it; none for one without rungs."""
    if spec["name"] not in WITH_RUNGS:
        return []
    low, high, factor = spec["min_resource"], spec["max_resource"], spec["reduction_factor"]
    if spec["name"] == "successive_halving":
        return [Bracket(0, _rungs(low, low * factor ** spec["min_early_stopping_rate"], high, factor), 1)]
    count = 1
    while low * factor**count <= high:
        count += 1
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


def cost(bracket: Bracket, trials: float, spec: Mapping[str, Any]) -> float:
    """Return the expected examples of a trial, as a share of a full run's, where so many are dealt to its bracket.

    By simulation: trials come in no order, are as good at one rung as at the next, and stop at the rung that they do
    not pass.
    """
    draw = random.Random(0).random
    at_a_time = min(max(1, round(trials)), SIMULATED_TRIALS)
    searches = math.ceil(SIMULATED_TRIALS / at_a_time)
    examples = 0
    for _ in range(searches):
        rungs = {at: Rung() for at in bracket.rungs}
        examples += sum(_simulated_end(draw(), rungs, spec) for _ in range(at_a_time))
    return examples / spec["max_resource"] / (searches * at_a_time)


def _simulated_end(value: float, rungs: Mapping[int, Rung], spec: Mapping[str, Any]) -> int:
    for at, rung in rungs.items():
        passed = rung.lets_pass(value, spec["reduction_factor"], spec["bootstrap_count"])
        rung.add(value, passed)
        if not passed:
            return at
    return int(spec["max_resource"])
