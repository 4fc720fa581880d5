"""What inspect.tsv says about a model: modules that explode, vanish, die or saturate, or whose updates are too large or
too small.

Each rule reads one column and names the worst modules in one sentence, with a remedy.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nlu.runs.records import INSPECT, INSPECT_VALUES, Cell, read_rows

Series = dict[str, dict[int, float]]
"""finite values by name, by step"""

EXPLODING = 100.0
"""times the median of a module's own gradient norms"""
DOMINANT = 0.5
"""share of the square of the whole gradient's norm"""
VANISHING = 1e-8
"""share of the whole gradient's norm"""
DEAD = 0.5
"""share of units"""
SATURATED = 0.95
"""mean of the largest attention weight of each query"""
LARGE_UPDATE, SMALL_UPDATE = 1e-1, 1e-6
"""size of an update relative to the weights"""
LEAST_ROWS = 5
"""a median of fewer values says little"""
LISTED = 3


@dataclass(frozen=True)
class Finding:
    """Something unusual inside a model."""

    says: str
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.says}; {self.remedy}"


def findings_of(run_dir: Path) -> list[Finding]:
    """Return the findings in a run's inspect.tsv; none if it has no such table."""
    path = run_dir / INSPECT
    return findings(read_rows(path)) if path.is_file() else []


def findings(rows: Iterable[Mapping[str, Cell]]) -> list[Finding]:
    """Return what is unusual in rows of inspect.tsv, at most one finding for each rule."""
    by_column: dict[str, Series] = {name: defaultdict(dict) for name in INSPECT_VALUES}
    for row in rows:
        # A parameter belongs to a module, whose gradient would count twice.
        if row["kind"] == "parameter":
            continue
        for column, series in by_column.items():
            value = row.get(column)
            if isinstance(value, int | float) and math.isfinite(value):
                series[str(row["name"])][int(row["step"] or 0)] = float(value)
    found = [
        _exploding(by_column["gradient"]),
        _dead(by_column["dead"]),
        _saturated(by_column["peak"]),
        _vanishing(by_column["gradient"]),
        _large_updates(by_column["update"]),
        _small_updates(by_column["update"]),
    ]
    return [one for one in found if one is not None]


def _exploding(gradients: Series) -> Finding | None:
    whole, worst = _whole(gradients), {}
    for name, by_step in gradients.items():
        middle = median(by_step.values())
        step, largest = max(by_step.items(), key=lambda item: item[1])
        if len(by_step) >= LEAST_ROWS and largest > EXPLODING * middle and largest**2 > DOMINANT * whole[step] ** 2:
            worst[name] = largest / middle if middle else math.inf
    if not worst:
        return None
    name, *others = _ordered(worst)
    step, largest = max(gradients[name].items(), key=lambda item: item[1])
    return Finding(
        f"{name} explodes: its gradient norm is {largest:.3g} at step {step}, {worst[name]:,.0f} times its median, and "
        f"makes up most of the gradient{_likewise(others)}",
        "lower optimizer.lr, lengthen scheduler.warmup, or set trainer.clip_norm",
    )


def _vanishing(gradients: Series) -> Finding | None:
    whole, worst = _whole(gradients), {}
    for name, by_step in gradients.items():
        shares = [value / whole[step] for step, value in by_step.items() if whole[step]]
        if len(shares) >= LEAST_ROWS and (share := median(shares)) < VANISHING:
            worst[name] = -share
    if not worst:
        return None
    name, *others = _ordered(worst)
    return Finding(
        f"the gradient of {name} vanishes: its norm is {-worst[name]:.1g} of that of the whole gradient"
        f"{_likewise(others)}",
        "look for a dead or saturated module or a detached tensor between it and the loss",
    )


def _dead(dead: Series) -> Finding | None:
    worst = {name: share for name, by_step in dead.items() if (share := _lately(by_step)) > DEAD}
    if not worst:
        return None
    name, *others = _ordered(worst)
    return Finding(
        f"{worst[name]:.0%} of the units that {name} reads are dead, near 0 for all tokens of a step"
        f"{_likewise(others)}",
        "lower optimizer.lr, lengthen scheduler.warmup, or start from other weights or with another model.activation",
    )


def _saturated(peaks: Series) -> Finding | None:
    worst = {name: peak for name, by_step in peaks.items() if (peak := _lately(by_step)) > SATURATED}
    if not worst:
        return None
    name, *others = _ordered(worst)
    return Finding(
        f"the attention of {name} is saturated: the largest weight of a query is {worst[name]:.3f} on average"
        f"{_likewise(others)}",
        "lower optimizer.lr, or start from other weights",
    )


def _large_updates(updates: Series) -> Finding | None:
    worst = {name: ratio for name, by_step in updates.items() if (ratio := _usual(by_step)) > LARGE_UPDATE}
    if not worst:
        return None
    name, *others = _ordered(worst)
    return Finding(
        f"a step changes the weights of {name} by {worst[name]:.0%} of their norm{_likewise(others)}",
        "lower optimizer.lr, or set optimizer.lr_by_name for it",
    )


def _small_updates(updates: Series) -> Finding | None:
    ratios = {name: ratio for name, by_step in updates.items() if (ratio := _usual(by_step)) < SMALL_UPDATE}
    if not ratios:
        return None
    name, *others = _ordered({name: -ratio for name, ratio in ratios.items()})
    return Finding(
        f"a step changes the weights of {name} by only {ratios[name]:.1g} of their norm{_likewise(others)}",
        "raise optimizer.lr or optimizer.lr_by_name, or freeze it with optimizer.freeze",
    )


def _whole(gradients: Series) -> dict[int, float]:
    """Return the norm of the whole gradient by step."""
    squares: dict[int, float] = defaultdict(float)
    for by_step in gradients.values():
        for step, value in by_step.items():
            squares[step] += value**2
    return {step: math.sqrt(value) for step, value in squares.items()}


def _lately(by_step: Mapping[int, float]) -> float:
    """Return the median of the last third of the values, which are those of the trained model."""
    values = [by_step[step] for step in sorted(by_step)]
    return median(values[-max(1, len(values) // 3) :])


def _usual(by_step: Mapping[int, float]) -> float:
    """Return the median; NaN, which no threshold is above or below, if there are few values."""
    return median(by_step.values()) if len(by_step) >= LEAST_ROWS else math.nan


def _ordered(worst: Mapping[str, float]) -> list[str]:
    """Return names, the largest value first, of equal ones in their order."""
    return sorted(worst, key=lambda name: -worst[name])


def _likewise(others: list[str]) -> str:
    if not others:
        return ""
    more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
    return f" (likewise {', '.join(others[:LISTED])}{more})"
