"""The brackets of HyperBand (Li et al., JMLR 18 (2018), 185): their rungs, which trials pass, and the expected cost.

A hash assigns each trial to a bracket, in proportion to the budgets of the brackets. Trials are judged as they come
(ASHA, Li et al., MLSys 2020), so none waits for another. `Rung` explains a difference. Successive halving is a search
with one bracket.
"""

import binascii
import math
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRUNER = "pruner"
"""user attribute of a study: the argument of `nlu.search.pruning.build`"""
RUNG = "rung_{examples}"
"""system attribute of a trial at a rung, a mapping: its `bracket` (named by the first rung of that), its `value`,
whether it `passed`, and for people its `rank` among those `of` the bracket so far, of which so many `pass`"""
WITH_RUNGS = ("hyperband", "successive_halving")
"""the pruners that judge trials at rungs"""
SIMULATED_TRIALS = 3000
"""the number of trials that `cost` simulates, in one or more searches"""


@dataclass(frozen=True)
class Bracket:
    """A bracket of HyperBand, or the only one of successive halving."""

    number: int
    rungs: tuple[int, ...]
    """examples seen at which trials are judged"""
    budget: int
    """its share of the trials, relative to the budgets of the others"""


class Rung:
    """The values of the trials of a bracket at one of its rungs, where greater is better.

    A trial passes if it is among the best 1 / factor so far. Once more than that share of all trials have passed, only
    a new best one passes. About as many trials pass as if they came in random order. Without this bound, far more would
    pass when trials keep getting better, as with a sampler that learns, and the search would exceed its announced cost.
    """

    def __init__(self, values: Iterable[float] = (), passed: int = 0):
        self._values, self._passed = sorted(values), passed

    def lets_pass(self, value: float, factor: int, bootstrap_count: int) -> bool:
        """Return whether the next trial passes. The first `bootstrap_count` trials never do."""
        came = len(self._values)
        if came < bootstrap_count:
            return False
        # This trial counts as one that has come.
        share = (came + 1) // factor
        if self._passed > share:
            return bisect_left(self._values, value) == came
        # The number of values that are strictly better: a trial with the same value as another passes with it.
        return came - bisect_right(self._values, value) < max(1, share)

    def place(self, value: float, factor: int) -> dict[str, int]:
        """Return the `rank` of the next trial among those `of` the rung with it, of which the best ones `pass`.

        0 of them pass where only a new best one does.
        """
        came = len(self._values)
        share = (came + 1) // factor
        rank = came - bisect_right(self._values, value) + 1
        return {"rank": rank, "of": came + 1, "pass": 0 if self._passed > share else max(1, share)}

    def add(self, value: float, passed: bool) -> None:
        """Add a trial."""
        insort(self._values, value)
        self._passed += passed


def brackets(spec: Mapping[str, Any]) -> list[Bracket]:
    """Return the brackets of a pruner, given as to `nlu.search.pruning.build`; none for a pruner without rungs."""
    if spec["name"] not in WITH_RUNGS:
        return []
    low, high, factor = spec["min_resource"], spec["max_resource"], spec["reduction_factor"]
    if spec["name"] == "successive_halving":
        return [Bracket(0, _rungs(low, low * factor ** spec["min_early_stopping_rate"], high, factor), 1)]
    # The number of brackets, each of which begins one rung later than the one before.
    count = 1
    while low * factor**count <= high:
        count += 1
    return [
        Bracket(
            number,
            _rungs(low, low * factor**number, high, factor),
            # The paper's number of configurations of a bracket, at which all brackets cost about the same.
            math.ceil(count * factor ** (count - 1 - number) / (count - number)),
        )
        for number in range(count)
    ]


def _rungs(low: int, first: int, high: int, factor: int) -> tuple[int, ...]:
    found = []
    # `low` is rounded down, so the last multiple may lie just before the end of a trial, where a rung is of no use.
    while first + first // low <= high:
        found.append(first)
        first *= factor
    return tuple(found)


def bracket_of(found: Sequence[Bracket], study: str, number: int) -> Bracket:
    """Return the bracket of a trial, a pure function of the study and the number."""
    # CRC-32 and not `hash`, which Python salts in each process.
    drawn = binascii.crc32(f"{study}_{number}".encode()) % sum(bracket.budget for bracket in found)
    for bracket in found:
        drawn -= bracket.budget
        if drawn < 0:
            return bracket
    raise AssertionError("a number below the sum of all budgets falls into one of them")


def cost(bracket: Bracket, trials: float, spec: Mapping[str, Any]) -> float:
    """Return the expected examples of a trial, as a share of a full run, if its bracket gets `trials` trials.

    This is a simulation of trials in random order, whose rank is the same at every rung.
    """
    # A fixed seed, so that the same search announces the same cost each time.
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
