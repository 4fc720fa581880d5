"""Pruners by name, with what is asked of each of their parameters; resources are examples seen."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nlu.config.checks.values import broken_rule, show
from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.sweeps.brackets import WITH_RUNGS

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage

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
    "none": {},
}
"""The parameters of each pruner beside the resources: default, and type as `nlu.config.types` names it."""
GONE = {
    "wilcoxon": "it tests pairs of independent runs, which the points of one learning curve are not; take median or "
    "hyperband",
}
"""pruners of optuna that are not offered, and why"""
RESOURCES = ("n_warmup_steps", "interval_steps")
"""Parameters that count examples seen, and may be written as durations."""


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
    if name in GONE:
        raise UserError(f"{KEY} is {name}: {GONE[name]}; set {KEY}=NAME")
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


def build(spec: Mapping[str, Any] | None, storage: BaseStorage) -> BasePruner:
    """Return the pruner of a specification: its name, its parameters and, where it has rungs, the resources.

    All resources are examples seen, as integers. `storage` is that of the study that it is to prune.
    """
    from optuna import pruners

    spec = dict(spec or {"name": "none"})
    if spec["name"] in WITH_RUNGS:
        from nlu.sweeps.halving import HalvingPruner

        return HalvingPruner(spec, storage)
    name = spec.pop("name")
    if name == "median":
        from nlu.sweeps.median import MedianPruner

        return MedianPruner(spec)
    if name == "threshold":
        return pruners.ThresholdPruner(**spec)
    return pruners.NopPruner()
