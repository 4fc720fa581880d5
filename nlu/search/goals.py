"""What a search improves besides the metric of its trials, and what its trials must keep: objectives and constraints.

Both name quantities of a trial that has ended: those that its run measures (`QUANTITIES`), or metrics of the dev set.
The metric is the first value of the study; further objectives are its further values. A job writes what was measured
once, so a search that was killed sees the same numbers again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nlu.config.errors import UserError
from nlu.config.nearest import hint

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

Direction = Literal["minimize", "maximize"]
GOALS = "goals"
"""user attribute of a study with objectives or constraints: `Goals.to_json`"""
MEASURED = "measured"
"""in result.json, and a user attribute of a trial: its quantities by name"""
QUANTITIES = {"latency_ms": False, "parameters": False}
"""what a run measures of itself, and whether more of it is better"""
OBJECTIVES, CONSTRAINTS = "hydra.sweeper.objectives", "hydra.sweeper.constraints"
_UNKNOWN = "which is neither measured nor a metric of the dev set that all trials have"
_CONSTRAINT = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Constraint:
    """A bound of a quantity."""

    name: str
    sign: str
    """<= or >="""
    bound: float

    @property
    def text(self) -> str:
        """The constraint as it is written."""
        return f"{self.name}{self.sign}{self.bound:.12g}"

    def violation(self, value: float) -> float:
        """Return by which share of the bound a value breaks it, or how much of a bound of 0; at most 0 if it keeps it.

        A share, so that a sampler can add the violations of quantities with different units.
        """
        over = value - self.bound if self.sign == "<=" else self.bound - value
        return over / (abs(self.bound) or 1.0)


@dataclass(frozen=True)
class Goals:
    """The objectives of a search besides the metric, and its constraints."""

    objectives: Mapping[str, bool] = field(default_factory=dict)
    """by name, whether more is better"""
    constraints: Sequence[Constraint] = ()

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Goals:
        """Return those of a study with these user attributes."""
        found = attributes.get(GOALS, {})
        return cls(found.get("objectives", {}), [Constraint(*each) for each in found.get("constraints", ())])

    def to_json(self) -> dict[str, Any]:
        return {
            "objectives": dict(self.objectives),
            "constraints": [[each.name, each.sign, each.bound] for each in self.constraints],
        }

    @property
    def directions(self) -> list[Direction]:
        """Those of the study after that of the metric."""
        return ["maximize" if more else "minimize" for more in self.objectives.values()]

    @property
    def quantities(self) -> list[str]:
        """The names of all quantities that an outcome needs besides the metric."""
        return list(dict.fromkeys([*self.objectives, *(each.name for each in self.constraints)]))

    def violations(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return by constraint how far it is broken (`Constraint.violation`), as far as its quantity is known."""
        return {each.text: each.violation(measured[each.name]) for each in self.constraints if each.name in measured}

    def broken(self, measured: Mapping[str, float]) -> list[str]:
        """Return the constraints that are known to be broken."""
        return [name for name, violation in self.violations(measured).items() if violation > 0]


def read_goals(
    objectives: Sequence[object] | None,
    constraints: Sequence[object] | None,
    metric: str | None,
    metrics: Mapping[str, bool],
) -> Goals:
    """Return the goals of a search as they are written in its settings.

    `metric` is that of the trials, which may be listed beside other objectives; `metrics` are all of the dev set with
    whether more of each is better. Raises UserError with all problems.
    """
    known = {**QUANTITIES, **metrics}
    problems: list[str] = []
    names: dict[str, bool] = {}
    for number, name in enumerate(objectives or ()):
        if not isinstance(name, str) or name not in known:
            problems.append(f"{OBJECTIVES}[{number}] is {name}, {_UNKNOWN}; {hint(str(name), known)}")
        elif name != metric:
            names[name] = known[name]
    found: list[Constraint] = []
    for number, written in enumerate(constraints or ()):
        where = f"{CONSTRAINTS}[{number}] is {written!r}"
        if (parts := _CONSTRAINT.fullmatch(str(written))) is None:
            problems.append(
                f"{where}, but must be NAME<=NUMBER or NAME>=NUMBER; write it with quotes, such as "
                f'\'{CONSTRAINTS}=["latency_ms<=5","parameters<=10e6"]\''
            )
        elif parts[1] not in known:
            problems.append(f"{where} about {parts[1]}, {_UNKNOWN}; {hint(parts[1], known)}")
        else:
            found.append(Constraint(parts[1], parts[2], float(parts[3])))
    if problems:
        raise UserError(*problems)
    return Goals(names, found)


def quantities_of(result: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, float], list[str]]:
    """Return quantities by name from the result.json of a trial, and a phrase for each that is not a number."""
    scores = result.get("metrics", {}).get(result["best"].get("set"), {})
    if result["pruned"]:
        # They are not those of its end, so no constraint on them says anything about it.
        scores = {}
    found, lacking = {}, []
    for name in names:
        value = result.get(MEASURED, {}).get(name, scores.get(name))
        if value is None or not math.isfinite(value):
            lacking += [] if result["pruned"] else [f"{name} is {value}"]
        else:
            found[name] = float(value)
    return found, lacking


def is_infeasible(trial: FrozenTrial) -> bool:
    """Whether a trial is known to break a constraint of its search."""
    return any(value > 0 for value in trial.constraints.values())


def best_trials(study: Study) -> list[FrozenTrial]:
    """Return the complete trials that keep all constraints and that no other one dominates, the best metric first.

    With one objective, the best one alone, of equal ones the first.
    """
    has_several = len(study.directions) > 1
    found = study.best_trials if has_several else study.get_trials(deepcopy=False)
    found = [trial for trial in found if trial.state.name == "COMPLETE" and not is_infeasible(trial)]
    sign = -1.0 if study.directions[0].name == "MAXIMIZE" else 1.0
    ordered = sorted(found, key=lambda trial: (sign * trial.values[0], trial.number))
    return ordered if has_several else ordered[:1]
