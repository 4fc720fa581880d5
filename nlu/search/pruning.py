"""The pruners by name, with the types and defaults of their parameters; resources are examples seen.

Those that pause trials instead of stopping them are schedulers of the search (`nlu.search.schedulers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nlu.config.checks.values import show, value_problem
from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.types import Duration, NonNegativeInt, PositiveInt
from nlu.search.brackets import WITH_RUNGS

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage

KEY = "hydra.sweeper.pruner"
PARAMETERS: dict[str, dict[str, tuple[object, Any]]] = {
    "hyperband": {"bootstrap_count": (0, NonNegativeInt)},
    "successive_halving": {"min_early_stopping_rate": (0, NonNegativeInt), "bootstrap_count": (0, NonNegativeInt)},
    "median": {
        "n_startup_trials": (5, NonNegativeInt),
        "n_warmup_steps": (0, NonNegativeInt | Duration),
        "interval_steps": (1, PositiveInt | Duration),
        "n_min_trials": (1, PositiveInt),
    },
    "threshold": {
        "lower": (None, float | None),
        "upper": (None, float | None),
        "n_warmup_steps": (0, NonNegativeInt | Duration),
        "interval_steps": (1, PositiveInt | Duration),
    },
    "asha": {},
    "freeze_thaw": {},
    "none": {},
}
"""default and type (from `nlu.config.types`) of the parameters of each pruner, except for the resources"""
RESOURCES = ("n_warmup_steps", "interval_steps")
"""parameters in examples seen, which may be durations"""


def read(written: object) -> tuple[str, dict[str, object]]:
    """Return name and parameters of a pruner written as `median` or `{name: median, n_startup_trials: 3}`.

    Raises UserError for an unknown name or parameter and for an invalid value.
    """
    if written is None:
        written = "none"
    node = dict(written) if isinstance(written, Mapping) else {"name": written}
    name = node.pop("name", "")
    if not isinstance(name, str) or name not in PARAMETERS:
        raise UserError(
            f"{KEY} is {show(written)}, which names no pruner; {hint(str(name), PARAMETERS)}; set {KEY}=NAME, or "
            f"'{KEY}={{name: median, n_startup_trials: 3}}'"
        )
    problems = [
        f"{KEY}.{key} is not a parameter of {name}; {hint(str(key), PARAMETERS[name])}"
        if key not in PARAMETERS[name]
        else value_problem(f"{KEY}.{key}", PARAMETERS[name][key][1], value)
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
    """Return the pruner of a specification: its name, its parameters and, for a pruner with rungs, the resources.

    All resources are integers, in examples seen. `storage` is the storage of the study.
    """
    from optuna import pruners

    spec = dict(spec or {"name": "none"})
    if spec["name"] in WITH_RUNGS:
        from nlu.search.pruners import HalvingPruner

        return HalvingPruner(spec, storage)
    name = spec.pop("name")
    if name == "median":
        from nlu.search.pruners import MedianPruner

        return MedianPruner(spec)
    if name == "threshold":
        return pruners.ThresholdPruner(**spec)
    return pruners.NopPruner()
