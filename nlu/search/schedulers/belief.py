"""Draws near a configuration that is believed to be good.

As in PriorBand (Mallik et al., "PriorBand: Practical Hyperparameter Optimization in the Age of Deep Learning", NeurIPS
2023, arXiv:2306.12370, appendix on sampling): a number is normally distributed around its center with a standard
deviation of a quarter of its interval, on the scale on which it is drawn, and cut off at the ends. A choice is its
center with the probability of one half, and otherwise any of the choices.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from nlu.search.schedulers.encoding import contains, drawn_value, position, value_at
from nlu.search.schedulers.scheduler import Draw

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
