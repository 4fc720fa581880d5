"""Whether predicted probabilities equal observed frequencies, and rank the rows of a class. Axes: N rows, C classes,
K bins.
"""

from collections.abc import Sequence
from typing import Self, TypedDict

import numpy as np

from nlu.metrics.classes import areas
from nlu.metrics.scores import Columns, Record, Scores, Total

BINS = 15
# The functional form, since `from` is a keyword of Python.
Bin = TypedDict("Bin", {"from": float, "to": float, "rows": int, "probability": float, "right": float})


class CalibrationScorer(Columns):
    """Expected calibration error and Brier score of a classifier.

    ECE: over BINS equally wide bins of the probability of the predicted class, the mean absolute difference between
    that probability and the share of right predictions, weighted by rows (Guo et al. 2017,
    https://arxiv.org/abs/1706.04599, section 2). Brier: the mean over rows of the squared differences between the
    probability of each class and 1 or 0, summed over classes (Brier 1950), from 0 to 2. A record holds `label`,
    `prediction`, `probability` and `probabilities`.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__(names, sums=["brier"])
        self.rows_K, self.right_K = np.zeros((2, BINS), np.int64)
        self.probability_K = [Total() for _ in range(BINS)]

    def add(self, record: Record) -> None:
        label, probability = record["label"], record["probability"]
        self.keep({"brier": sum((p - (name == label)) ** 2 for name, p in record["probabilities"].items())})
        # A probability of exactly 1 belongs to the last bin.
        place = min(int(probability * BINS), BINS - 1)
        self.rows_K[place] += 1
        self.right_K[place] += record["prediction"] == label
        self.probability_K[place].add(probability)

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.rows_K += other.rows_K
        self.right_K += other.right_K
        for own, theirs in zip(self.probability_K, other.probability_K, strict=True):
            own.merge(theirs)

    def result(self) -> Scores:
        gaps = [abs(one["probability"] - one["right"]) * one["rows"] for one in self.bins()]
        return Scores({"ece": sum(gaps) / len(self), "brier": self.mean("brier")})

    def bins(self) -> list[Bin]:
        """Return the bins that have rows, each with its ends, rows, mean probability and share of right predictions."""
        return [
            {
                "from": place / BINS,
                "to": (place + 1) / BINS,
                "rows": rows,
                "probability": self.probability_K[place].value / rows,
                "right": int(self.right_K[place]) / rows,
            }
            for place, rows in enumerate(self.rows_K.tolist())
            if rows
        ]


class AreaScorer(Columns):
    """The areas under the curves of each class against all others, as means over classes.

    A class counts if some, but not all, rows have it. A record holds `label` and `probabilities`. Memory: 8 bytes for
    each row and class.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__(names, label="l", **{f"of {name}": "d" for name in names})

    def add(self, record: Record) -> None:
        of_classes = {f"of {name}": probability for name, probability in record["probabilities"].items()}
        self.keep({**of_classes, "label": self.number[record["label"]]})

    def result(self) -> Scores:
        label_N, *probability_CN = self.arrays(*self.columns)
        probability_NC = np.array(probability_CN).T
        is_class_NC = label_N[:, None] == np.arange(len(self.names))
        occurs_C = is_class_NC.any(axis=0) & ~is_class_NC.all(axis=0)
        means = areas(probability_NC[:, occurs_C], is_class_NC[:, occurs_C])
        return Scores({f"{name}_macro": float(value) for name, value in means.items()})
