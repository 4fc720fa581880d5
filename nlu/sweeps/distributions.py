"""The sweeps of Hydra (`choice`, `range`, `interval`) as distributions of Optuna.

hydra-optuna-sweeper converts them in a private module; a test compares its result with this one.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial


def distribution_of(override: Override) -> BaseDistribution:
    """Return the distribution of the sweep in an override.

    `choice`, and a range that is shuffled or cast, become a list of choices. `range` becomes its steps without its end,
    as in Hydra. `interval` becomes all numbers between its ends, or all integers if both ends are integers, and with
    `tag(log, ...)` is logarithmic. Raises ValueError for an empty sweep.
    """
    value = override.value()
    if isinstance(value, IntervalSweep):
        return _interval(value)
    if isinstance(value, RangeSweep) and not (value.shuffle or value.transformers):
        return _range(value) or _choices(override)
    return _choices(override)


def _choices(override: Override) -> BaseDistribution:
    choices: list[Any] = list(override.sweep_iterator(transformer=Transformer.encode))
    for choice in choices:
        if not isinstance(choice, str | int | float | bool | None):
            raise ValueError(f"{choice!r} is not a single value")
    return CategoricalDistribution(choices)


def _range(value: RangeSweep) -> BaseDistribution | None:
    """Return the steps of a range; None if floating-point numbers cannot represent them exactly."""
    if value.start is None or value.stop is None or not value.step:
        raise ValueError("the range lacks an end, or its step is 0")
    start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
    count = math.ceil((stop - start) / step)
    if count <= 0:
        raise ValueError("the range holds no value")
    low, high = sorted((start, start + (count - 1) * step))
    if all(isinstance(number, int) for number in (value.start, value.stop, value.step)):
        return IntDistribution(int(low), int(high), step=int(abs(step)))
    ends = float(low), float(high), float(abs(step))
    is_exact = tuple(Decimal(str(end)) for end in ends) == (low, high, abs(step))
    is_apart = low == high or max(math.ulp(ends[0]), math.ulp(ends[1])) <= ends[2]
    return FloatDistribution(ends[0], ends[1], step=ends[2]) if is_exact and is_apart else None


def _interval(value: IntervalSweep) -> BaseDistribution:
    low, high, is_log = value.start, value.end, "log" in value.tags
    if low is None or high is None:
        raise ValueError("the interval lacks an end")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=is_log)
    return FloatDistribution(float(low), float(high), log=is_log)


def values_of(distribution: BaseDistribution) -> list[Any] | None:
    """Return every value of a distribution, in order; None if it is not a list or a range."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return None if distribution.log else list(range(distribution.low, distribution.high + 1, distribution.step))
    if not isinstance(distribution, FloatDistribution) or distribution.step is None:
        return None
    low, high, step = (Decimal(str(number)) for number in (distribution.low, distribution.high, distribution.step))
    return [float(low + count * step) for count in range(int((high - low) / step) + 1)]


def suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    """Draw a value for a trial, or return the one that it has already drawn under this name."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_int(name, low, high, step=distribution.step, log=distribution.log)
    assert isinstance(distribution, FloatDistribution), "there are three kinds of distribution"
    return trial.suggest_float(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
