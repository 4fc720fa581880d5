"""What is drawn of several runs: their curves, and what the best weights of a classifier predict.

Axes: P points of a curve.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Curve:
    """One quantity of one configuration."""

    label: str
    x_P: np.ndarray
    mean_P: np.ndarray
    sd_P: np.ndarray | None = None
    """sample standard deviation over its runs; None of a single one"""
    runs: int = 1
    best: tuple[float, float] | None = None
    """where the value of its best evaluation lies, of the metric that decides"""


@dataclass
class Drawing:
    """Curves of one quantity."""

    name: str
    """of the file"""
    title: str
    across: str
    curves: list[Curve] = field(default_factory=list)
    epochs: float | None = None
    """the length of an epoch on the x axis, where all runs agree"""
    is_noisy: bool = False
    """whether many of its points are drawn as their running mean"""
    without: list[str] = field(default_factory=list)
    """configurations that have no such quantity"""


@dataclass
class KeptScores:
    """Of one set, as the runs of one configuration predicted it."""

    set_name: str
    names: list[str]
    by_label: list[dict[str, Any]]
    """of each class `label`, `examples` in all runs, `f1` as mean over runs, and `sd`, None of a single run"""
    confusion: list[list[int]]
    calibration: list[dict[str, Any]]
    ece: float
    right_by_length: list[tuple[float, float, int]] = field(default_factory=list)
    """of tenths and the like of the rows by their number of characters: their mean length, share right, rows"""
    runs: int = 1
