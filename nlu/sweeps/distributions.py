"""Hydra's sweeps as optuna's distributions: what `choice`, `range` and `interval` draw from.

hydra-optuna-sweeper reads them alike, in a module that it does not promise to keep; a test compares the two.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial


def distribution_of(override: Override) -> BaseDistribution:
    """Return what the sweep of an override draws from.

    `choice`, and a range that is shuffled or cast, draw from a list; `range` from its own steps, its end left out as in
    Hydra; `interval` from all numbers between its ends, of whole ends from whole numbers, `tag(log, ...)` by their
    logarithm. Raises ValueError where nothing could be drawn.
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
            raise ValueError(f"{choice!r} is no single value")
    return CategoricalDistribution(choices)


def _range(value: RangeSweep) -> BaseDistribution | None:
    """Return the steps of a range; None where floating-point numbers do not hold them exactly."""
    if value.start is None or value.stop is None or not value.step:
        raise ValueError("the range has no end, or its step is 0")
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
        raise ValueError("the interval has no end")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=is_log)
    return FloatDistribution(float(low), float(high), log=is_log)


def values_of(distribution: BaseDistribution) -> list[Any] | None:
    """Return every value that may be drawn, in order; None where one cannot count them."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return None if distribution.log else list(range(distribution.low, distribution.high + 1, distribution.step))
    if not isinstance(distribution, FloatDistribution) or distribution.step is None:
        return None
    low, high, step = (Decimal(str(number)) for number in (distribution.low, distribution.high, distribution.step))
    return [float(low + count * step) for count in range(int((high - low) / step) + 1)]


def suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    """Draw a value of a trial, or return what it drew before under this name."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        low, high = distribution.low, distribution.high
        return trial.suggest_int(name, low, high, step=distribution.step, log=distribution.log)
    assert isinstance(distribution, FloatDistribution), "there are three kinds of distribution"
    return trial.suggest_float(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
