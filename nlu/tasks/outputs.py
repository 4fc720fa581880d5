"""What scoring a set gives, in the order of its examples. Axes: N examples, R rows of logits, C labels."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nlu.data.examples import Examples


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


def identities(part: Examples) -> list[dict[str, int]]:
    """Return what names each example of a set.

    `id` counts the usable rows of all files of the set from 0, in their order, and is the same in every fold; `file`
    counts the files from 0, and `row` is the place in its file that errors name.
    """
    stored, rows_N = part.stored, part.rows_N
    columns = (rows_N, stored.file_N[rows_N], stored.number_N[rows_N])
    return [{"id": int(i), "file": int(file), "row": int(row)} for i, file, row in zip(*columns, strict=True)]
