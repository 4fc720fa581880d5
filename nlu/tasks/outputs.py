"""What scoring a set gives, in the order of its examples. Axes: N examples, R rows of logits, C labels."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Outputs:
    """Logits of a whole set: one row for each example, or for each unit that fitted of each example."""

    logits_RC: np.ndarray
    counts_N: np.ndarray
    """rows of each example; all 1 for classification"""


@dataclass
class Scores:
    """Metrics of a set, the table by label, and one record for each example."""

    metrics: dict[str, float]
    by_label: list[dict[str, Any]] = field(default_factory=list)
    predictions: list[dict[str, Any]] = field(default_factory=list)
