"""Configurations as rows of numbers for a kernel, and new configurations near others.

A number becomes its position between the ends of its interval, on the scale on which it is drawn. Numbers of a choice
become their rank, and other choices one column each. A parameter that may be inactive, because it depends on another
one, lies on an arc (Swersky et al., "Raiders of the Lost Architecture", 2014): all its values are equally far from
"inactive".

Draws near a configuration that is believed to be good.

As in PriorBand (Mallik et al., "PriorBand: Practical Hyperparameter Optimization in the Age of Deep Learning", NeurIPS
2023, arXiv:2306.12370, appendix on sampling): a number is normally distributed around its center with a standard
deviation of a quarter of its interval, on the scale on which it is drawn, and cut off at the ends. A choice is its
center with the probability of one half, and otherwise any of the choices.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from nlu.search.schedulers.scheduler import Draw, Suggest

WIDTHS = (0.03, 0.1, 0.3)
"""standard deviations of a change of a parameter, as a share of its interval"""
CHANGED = 0.15
"""the probability that a neighbor has another choice of a parameter"""


class Encoding:
    """Axes: T configurations, C columns, P parameters."""

    def __init__(self, distributions: Mapping[str, Sequence[BaseDistribution]], conditional: Sequence[str] = ()):
        """`distributions` has those of each parameter, several if they depend on a condition; `conditional` are the
        names of parameters that are not always active."""
        self._wide = {name: _joined(each) for name, each in distributions.items()}
        self._conditional = set(conditional)
        self.names = list(self._wide)
        self.parameter_C = np.repeat(np.arange(len(self.names)), [self._width(name) for name in self.names])
        """the parameter of each column"""

    def rows(self, configurations: Sequence[Mapping[str, object]]) -> np.ndarray:
        """Return the matrix TC of some configurations."""
        return np.array([[x for name in self.names for x in self._columns(name, values)] for values in configurations])

    def _width(self, name: str) -> int:
        held = self._wide[name]
        if _is_of_names(held):
            return len(held.choices)
        return 2 if name in self._conditional else 1

    def _columns(self, name: str, values: Mapping[str, object]) -> list[float]:
        held = self._wide[name]
        if _is_of_names(held):
            # The distance between two choices is 1; an inactive parameter differs from each by less.
            own = values.get(name, self)
            return [math.sqrt(0.5) * (_same(choice, own)) for choice in held.choices]
        if name not in self._conditional:
            return [position(held, values[name])]
        if name not in values:
            return [0.0, 0.0]
        angle = position(held, values[name]) * math.pi / 2
        return [math.sin(angle), math.cos(angle)]


def _joined(distributions: Sequence[BaseDistribution]) -> Any:
    """Return the distribution over the values of all of them."""
    first: Any = distributions[0]
    if isinstance(first, CategoricalDistribution):
        return first
    numbers: Sequence[Any] = distributions
    low, high = min(each.low for each in numbers), max(each.high for each in numbers)
    return FloatDistribution(float(low), float(high), log=all(each.log for each in numbers))


def _is_of_names(distribution: Any) -> bool:
    """Whether a distribution is over choices that have no order."""
    return isinstance(distribution, CategoricalDistribution) and not _numbers(distribution.choices)


def _numbers(choices: Sequence[object]) -> list[float]:
    """Return choices that are all numbers, in order; otherwise none."""
    found = [float(each) for each in choices if isinstance(each, int | float) and not isinstance(each, bool)]
    return sorted(set(found)) if len(found) == len(choices) else []


def _same(one: object, other: object) -> bool:
    # 1 and True are equal in Python, but not in a configuration.
    return type(one) is type(other) and one == other


def position(distribution: Any, value: Any) -> float:
    """Return where a value lies between the ends of its distribution, from 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        order = _numbers(distribution.choices)
        return order.index(float(value)) / max(1, len(order) - 1)
    if distribution.low == distribution.high:
        return 0.5
    low, high = _ends(distribution)
    if distribution.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def value_at(distribution: Any, share: float) -> Any:
    """Return the value of a numeric distribution at a position from 0 to 1, rounded to its steps."""
    low, high, step = distribution.low, distribution.high, distribution.step
    if step is None and not 0.0 < share < 1.0:
        # The exponential of a logarithm differs in the last digit: 0.00010000000000000009 for 0.0001.
        return float(low if share <= 0.0 else high)
    found = _between(*_ends(distribution), share, log=distribution.log)
    if step is not None:
        found = low + round((found - low) / step) * step
    found = min(max(found, low), high)
    return int(found) if isinstance(distribution, IntDistribution) else float(found)


def _ends(distribution: Any) -> tuple[float, float]:
    """Return the ends between which positions lie: each step has an equal share, those at the ends too."""
    margin = (distribution.step or 0) / 2
    return distribution.low - margin, distribution.high + margin


def contains(distribution: Any, value: object) -> bool:
    """Whether a distribution draws a value; one key may have several, that depend on conditions."""
    if isinstance(distribution, CategoricalDistribution):
        return any(_same(choice, value) for choice in distribution.choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high, step = distribution.low, distribution.high, distribution.step
    if not low <= value <= high:
        return False
    return step is None or math.isclose((value - low) / step, round((value - low) / step), abs_tol=1e-9)


def _between(low: float, high: float, share: float, *, log: bool) -> float:
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low))) if log else low + share * (high - low)


def drawn_anywhere(draw: Draw, random: np.random.Generator) -> dict[str, object]:
    """Return a configuration drawn at random."""
    return dict(draw(_anywhere(random)))


def drawn_near(draw: Draw, origin: Mapping[str, object], random: np.random.Generator) -> dict[str, object]:
    """Return a neighbor of a configuration; a parameter that is active only in the neighbor is drawn at random."""
    width = WIDTHS[int(random.integers(len(WIDTHS)))]
    anywhere = _anywhere(random)

    def suggest(name: str, distribution: BaseDistribution) -> object:
        if name not in origin:
            return anywhere(name, distribution)
        value: Any = origin[name]
        if isinstance(distribution, CategoricalDistribution):
            return anywhere(name, distribution) if random.random() < CHANGED else value
        moved = position(distribution, value) + width * random.standard_normal()
        return value_at(distribution, min(max(moved, 0.0), 1.0))

    return dict(draw(suggest))


def drawn_value(distribution: BaseDistribution, random: np.random.Generator) -> object:
    """Return a value that is drawn evenly, on the scale of the distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(random.integers(len(distribution.choices)))]
    return value_at(distribution, float(random.random()))


def _anywhere(random: np.random.Generator) -> Suggest:
    return lambda name, distribution: drawn_value(distribution, random)


WIDTH = 0.25
"""the standard deviation, as a share of an interval"""
CHOSEN = 0.5
"""the probability of the center of a choice, besides its equal share of the rest"""
_NORMAL = NormalDist()


class Belief:
    """Values that are believed to be good. A parameter without one, or with one of another range, is drawn evenly."""

    def __init__(self, centers: Mapping[str, object]):
        self.centers = centers

    def value(self, name: str, distribution: BaseDistribution, random: np.random.Generator) -> object:
        """Return a value for a parameter."""
        center: Any = self.centers.get(name)
        if name not in self.centers or not contains(distribution, center):
            return drawn_value(distribution, random)
        if isinstance(distribution, CategoricalDistribution):
            return center if random.random() < CHOSEN else drawn_value(distribution, random)
        middle = position(distribution, center)
        low, high = _NORMAL.cdf(-middle / WIDTH), _NORMAL.cdf((1 - middle) / WIDTH)
        share = middle + WIDTH * _NORMAL.inv_cdf(low + (high - low) * float(random.uniform(1e-9, 1 - 1e-9)))
        return value_at(distribution, min(max(share, 0.0), 1.0))

    def configuration(self, draw: Draw, random: np.random.Generator) -> dict[str, object]:
        """Return a configuration."""
        return dict(draw(lambda name, distribution: self.value(name, distribution, random)))
