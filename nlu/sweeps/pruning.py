"""Pruners by name, in examples seen; the brackets of HyperBand and what they are expected to cost.

HyperBand: Li et al., JMLR 18 (2018), 185. As optuna does it: rungs are passed one trial at a time (ASHA, Li et al.,
MLSys 2020), and a trial's bracket is a hash of study name and number, weighted by the brackets' budgets.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nlu.config.check import broken_rule, show
from nlu.config.errors import UserError
from nlu.config.nearest import hint

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

KEY = "hydra.sweeper.pruner"
PARAMETERS: dict[str, dict[str, tuple[Any, str]]] = {
    "hyperband": {"bootstrap_count": (0, "NonNegativeInt")},
    "successive_halving": {"min_early_stopping_rate": (0, "NonNegativeInt"), "bootstrap_count": (0, "NonNegativeInt")},
    "median": {
        "n_startup_trials": (5, "NonNegativeInt"),
        "n_warmup_steps": (0, "NonNegativeInt | Duration"),
        "interval_steps": (1, "PositiveInt | Duration"),
        "n_min_trials": (1, "PositiveInt"),
    },
    "threshold": {
        "lower": (None, "float | None"),
        "upper": (None, "float | None"),
        "n_warmup_steps": (0, "NonNegativeInt | Duration"),
        "interval_steps": (1, "PositiveInt | Duration"),
    },
    "wilcoxon": {"p_threshold": (0.1, "Fraction"), "n_startup_steps": (2, "NonNegativeInt")},
    "none": {},
}
"""The parameters of each pruner beside the resources: default, and type as `nlu.config.types` names it."""
WITH_RUNGS = ("hyperband", "successive_halving")
RESOURCES = ("n_warmup_steps", "interval_steps")
"""Parameters that count examples seen, and may be written as durations."""
TRIALS_PER_BRACKET = 10
"""Trials that TPE draws at random in each bracket before it learns anything (its n_startup_trials)."""


def read(written: Any) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a pruner written as `median` or `{name: median, n_startup_trials: 3}`.

    Raises UserError for a name or parameter that there is not, and for values that cannot be.
    """
    if written is None:
        written = "none"
    node = dict(written) if isinstance(written, Mapping) else {"name": written}
    if "name" not in node:
        raise UserError(
            f"{KEY} is {show(written)}, which names no pruner; add one of {', '.join(PARAMETERS)}: "
            f"'{KEY}={{name: median, n_startup_trials: 3}}'"
        )
    name = node.pop("name")
    if name not in PARAMETERS:
        raise UserError(
            f"{KEY} is {show(written)}: there is no such pruner; {hint(str(name), PARAMETERS)}; set {KEY}=NAME"
        )
    problems = [
        f"{KEY}.{key}: {name} has no such parameter; {hint(str(key), PARAMETERS[name])}"
        if key not in PARAMETERS[name]
        else broken_rule(f"{KEY}.{key}", ast.Constant(PARAMETERS[name][key][1]), value)
        for key, value in node.items()
    ]
    parameters = {key: default for key, (default, _) in PARAMETERS[name].items()} | node
    if name == "threshold":
        problems.append(_bounds_problem(parameters["lower"], parameters["upper"]))
    if found := [problem for problem in problems if problem]:
        raise UserError(*found)
    return name, parameters


def _bounds_problem(lower: Any, upper: Any) -> str | None:
    if lower is None and upper is None:
        return f"{KEY} is threshold, which needs a bound; write '{KEY}={{name: threshold, lower: 0.5}}', or upper"
    both_known = all(isinstance(bound, int | float) for bound in (lower, upper))
    if both_known and lower > upper:
        return f"{KEY}.lower is {lower}, more than upper, {upper}, so that nothing would pass; set it lower"
    return None


def build(spec: Mapping[str, Any] | None) -> BasePruner:
    """Return the pruner of a specification: its name, its parameters and, where it has rungs, the resources.

    All resources are examples seen, as integers.
    """
    from optuna import pruners

    spec = dict(spec or {"name": "none"})
    name = spec.pop("name")
    if name == "hyperband":
        return pruners.HyperbandPruner(**spec)
    if name == "successive_halving":
        spec.pop("max_resource")
        return pruners.SuccessiveHalvingPruner(**spec)
    if name == "median":
        return pruners.MedianPruner(**spec)
    if name == "threshold":
        return pruners.ThresholdPruner(**spec)
    if name == "wilcoxon":
        return pruners.WilcoxonPruner(**spec)
    return pruners.NopPruner()


@dataclass(frozen=True)
class Bracket:
    """A bracket of HyperBand, or successive halving's only one."""

    number: int
    rungs: tuple[int, ...]
    """examples seen at which all but the best 1 / reduction_factor of the trials are stopped"""
    share: float
    """expected share of the trials"""
    cost: float
    """expected examples of a trial, as a share of a full run's, if values are as good as random and stopped trials stop
    at their rung"""


def brackets(spec: Mapping[str, Any], n_trials: int) -> list[Bracket]:
    """Return the brackets of a search by so many trials; none for a pruner without rungs."""
    if spec["name"] not in WITH_RUNGS:
        return []
    low, high, factor = spec["min_resource"], spec["max_resource"], spec["reduction_factor"]
    count = math.floor(math.log(high / low, factor)) + 1 if spec["name"] == "hyperband" else 1
    budgets = [math.ceil(count * factor ** (count - 1 - number) / (count - number)) for number in range(count)]
    found = []
    for number, budget in enumerate(budgets):
        rate = number if spec["name"] == "hyperband" else spec["min_early_stopping_rate"]
        rungs = _rungs(low, low * factor**rate, high, factor)
        share = budget / sum(budgets)
        found.append(Bracket(number, rungs, share, _cost(rungs, high, factor, share * n_trials)))
    return found


def _rungs(low: int, first: int, high: int, factor: int) -> tuple[int, ...]:
    found = []
    # A rung that would be the end, had `low` not been rounded down to an integer, is none.
    while first + first // low <= high:
        found.append(first)
        first *= factor
    return tuple(found)


def _cost(rungs: tuple[int, ...], high: int, factor: int, trials: float) -> float:
    alive, examples, before = trials, 0.0, 0
    for at in (*rungs, high):
        examples += alive * (at - before)
        alive, before = _passing(alive, factor), at
    return examples / high / trials


def _passing(trials: float, factor: int) -> float:
    """Return how many are expected to pass a rung at which they arrive one by one, in no order.

    The nth passes if it is among the best n / factor so far, and while that is less than one, if it is the best. So
    more pass than of trials that wait for one another.
    """
    whole = round(trials)
    return sum(max(1, nth // factor) / nth for nth in range(1, whole + 1)) * trials / whole if whole else trials


def trials_wanted(found: list[Bracket]) -> int:
    """Return how many trials TPE wants before it has learned something in every bracket."""
    return TRIALS_PER_BRACKET * len(found)
