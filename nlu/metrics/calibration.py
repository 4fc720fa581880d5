"""Whether predicted probabilities equal observed frequencies, and rank the rows of a class. Axes: N rows, C classes."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from nlu.metrics.classes import areas
from nlu.metrics.scores import Columns, Record, Scores, total

BINS = 15
# The functional form, since `from` is a keyword of Python.
Bin = TypedDict("Bin", {"from": float, "to": float, "rows": int, "probability": float, "right": float})


class CalibrationScorer(Columns):
    """Expected calibration error and Brier score of a classifier.

    ECE: over BINS equally wide bins of the probability of the predicted class, the mean absolute difference between
    that probability and the share of right predictions, weighted by rows (Guo et al. 2017,
    https://arxiv.org/abs/1706.04599, section 2). Brier: the mean over rows of the squared differences between the
    probability of each class and 1 or 0, summed over classes (Brier 1950), from 0 to 2. A record holds `label`,
    `prediction`, `probability` and `probabilities`. Memory: 24 bytes a row.
    """

    def __init__(self, names: Sequence[str]):
        super().__init__(names, probability="d", is_right="l", brier="d")

    def add(self, record: Record) -> None:
        label = record["label"]
        brier = sum((p - (name == label)) ** 2 for name, p in record["probabilities"].items())
        self.keep(probability=record["probability"], is_right=record["prediction"] == label, brier=brier)

    def result(self) -> Scores:
        gaps = [abs(one["probability"] - one["right"]) * one["rows"] for one in self.bins()]
        return Scores({"ece": sum(gaps) / len(self), "brier": self.mean("brier")})

    def bins(self) -> list[Bin]:
        """Return the bins that have rows, each with its ends, rows, mean probability and share of right predictions."""
        probability_N, is_right_N = self.arrays("probability", "is_right")
        # A probability of exactly 1 belongs to the last bin.
        bin_N = np.minimum((probability_N * BINS).astype(int), BINS - 1)
        return [
            {
                "from": place / BINS,
                "to": (place + 1) / BINS,
                "rows": rows,
                "probability": total(probability_N[bin_N == place].tolist()) / rows,
                "right": int(is_right_N[bin_N == place].sum()) / rows,
            }
            for place, rows in enumerate(np.bincount(bin_N, minlength=BINS).tolist())
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
        self.keep(label=self.number[record["label"]], **of_classes)

    def result(self) -> Scores:
        label_N, *probability_CN = self.arrays(*self.columns)
        probability_NC = np.array(probability_CN).T
        is_class_NC = label_N[:, None] == np.arange(len(self.names))
        occurs_C = is_class_NC.any(axis=0) & ~is_class_NC.all(axis=0)
        means = areas(probability_NC[:, occurs_C], is_class_NC[:, occurs_C])
        return Scores({f"{name}_macro": float(value) for name, value in means.items()})
