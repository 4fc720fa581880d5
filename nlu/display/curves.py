"""What is drawn of several runs: their curves, and what the best weights of a classifier predict.

Axes: P points of a curve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nlu.runs.records import Cell

MEANS = ("loss", "gnorm", "clipped")
"""columns of train.tsv that are means over the steps since the row before"""


def with_whole_windows(train: Sequence[Mapping[str, Cell]]) -> list[dict[str, Cell]]:
    """Return the rows of train.tsv with a short last window joined to the one before it, each step weighing the same.

    Training rarely ends where a window does. The mean of the last few steps, or of one, would end a curve in a jump.
    """
    rows = [dict(row) for row in train]
    if len(rows) < 3:
        return rows
    places = [row.get("step") for row in rows[-3:]]
    if not all(isinstance(place, int) for place in places):
        return rows
    earlier, before, end = (int(place or 0) for place in places)
    whole, rest = before - earlier, end - before
    if 0 < 2 * rest < whole:
        short, last = rows.pop(), rows[-1]
        for column in MEANS:
            first, second = last.get(column), short.get(column)
            if isinstance(first, int | float) and isinstance(second, int | float):
                short[column] = (whole * first + rest * second) / (whole + rest)
        rows[-1] = short
    return rows


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
