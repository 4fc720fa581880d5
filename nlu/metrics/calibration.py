"""Whether predicted probabilities equal observed frequencies. Axes: K bins, N rows, C classes."""

from array import array
from collections.abc import Sequence
from typing import Self, TypedDict

import numpy as np

from nlu.metrics.classes import areas
from nlu.metrics.scores import ExactSum, Record, Scores

BINS = 15
PARTS = 1 << 40
# The functional form, since `from` is a keyword of Python.
Bin = TypedDict("Bin", {"from": float, "to": float, "rows": int, "probability": float, "right": float})


class CalibrationScorer:
    """Expected calibration error and Brier score of a classifier.

    ECE: over BINS equally wide bins of the probability of the predicted class, the mean absolute difference between
    that probability and the share of right predictions, weighted by rows (Guo et al. 2017,
    https://arxiv.org/abs/1706.04599, section 2). Brier:
    the mean over rows of the squared differences between the probability of each class and 1 or 0, summed over classes
    (Brier 1950), from 0 to 2. A record holds `label`, `prediction`, `probability` and `probabilities`.
    """

    def __init__(self, names: Sequence[str]):
        """`names` of the classes are not needed, since records have them."""
        self._rows_K, self._right_K = np.zeros((2, BINS), np.int64)
        self._probability_K = [0] * BINS
        """integers of Python, since 2**23 rows of one bin would overflow those of numpy"""
        self._brier = ExactSum()

    def add(self, record: Record) -> None:
        probability = record["probability"]
        # A probability of exactly 1 belongs to the last bin.
        place = min(BINS - 1, int(probability * BINS))
        self._rows_K[place] += 1
        self._right_K[place] += record["prediction"] == record["label"]
        # Sums of multiples of 2**-40 are exact in any order.
        self._probability_K[place] += round(probability * PARTS)
        self._brier.add(sum((p - (name == record["label"])) ** 2 for name, p in record["probabilities"].items()))

    def merge(self, other: Self) -> None:
        self._rows_K += other._rows_K
        self._right_K += other._right_K
        self._probability_K = [
            own + theirs for own, theirs in zip(self._probability_K, other._probability_K, strict=True)
        ]
        self._brier.merge(other._brier)

    def result(self) -> Scores:
        rows = int(self._rows_K.sum())
        gap = float(np.abs(self._right_K - np.array([total / PARTS for total in self._probability_K])).sum())
        return Scores({"ece": gap / rows, "brier": self._brier.value / rows})

    def bins(self) -> list[Bin]:
        """Return the bins that have rows, each with its ends, rows, mean probability and share of right predictions."""
        return [
            {
                "from": place / BINS,
                "to": (place + 1) / BINS,
                "rows": rows,
                "probability": self._probability_K[place] / PARTS / rows,
                "right": int(self._right_K[place]) / rows,
            }
            for place, rows in enumerate(self._rows_K.tolist())
            if rows
        ]


class CurveScorer:
    """Areas under the curves of each class against all others, and for two classes the best thresholds.

    `auc_macro` and `average_precision_macro` are means over the classes that some, but not all, rows have. For two
    classes, `best_f1` and `best_accuracy` are the highest values over all thresholds on the probability of the second
    class, chosen on the same rows and so optimistic; `threshold_f1` and `threshold_accuracy` are the highest thresholds
    that reach them. A record holds `label` and `probabilities`. Memory: 8 bytes for each row and class.
    """

    def __init__(self, names: Sequence[str]):
        self._names = list(names)
        self._number = {name: number for number, name in enumerate(names)}
        self._labels, self._probabilities = array("l"), array("d")

    def add(self, record: Record) -> None:
        self._labels.append(self._number[record["label"]])
        self._probabilities.extend(record["probabilities"][name] for name in self._names)

    def merge(self, other: Self) -> None:
        self._labels.extend(other._labels)
        self._probabilities.extend(other._probabilities)

    def result(self) -> Scores:
        label_N = np.array(self._labels)
        probability_NC = np.array(self._probabilities).reshape(len(label_N), len(self._names))
        # A curve needs rows of the class and rows of others.
        occur = [number for number in range(len(self._names)) if 0 < (label_N == number).sum() < len(label_N)]
        areas_C = [areas(probability_NC[:, number], label_N == number) for number in occur]
        mean = {"auc_macro": [auc for auc, _ in areas_C], "average_precision_macro": [ap for _, ap in areas_C]}
        found = {name: float(np.mean(values)) if values else float("nan") for name, values in mean.items()}
        if len(self._names) == 2:
            found = best_thresholds(label_N, probability_NC[:, 1])
        return Scores(found)


def best_thresholds(label_N: np.ndarray, probability_N: np.ndarray) -> dict[str, float]:
    """Return the highest F1 and accuracy over thresholds on the probability of the second class, and the thresholds."""
    order_N = np.argsort(-probability_N, kind="stable")
    value_N, label_N = probability_N[order_N], label_N[order_N]
    # The first k rows are predicted as positive, for k from 0. Rows of equal probability cannot be separated.
    may_end_K = np.concatenate([[True], value_N[1:] != value_N[:-1], [True]])
    right_K, chosen_K = np.append(0, np.cumsum(label_N)), np.arange(len(label_N) + 1)
    positive, count = int(label_N.sum()), len(label_N)
    f1_K = np.where(may_end_K, 2 * right_K / np.maximum(chosen_K + positive, 1), -1.0)
    accuracy_K = np.where(may_end_K, (right_K + (count - positive) - (chosen_K - right_K)) / count, -1.0)
    # argmax takes the first of equal values, which belongs to the highest threshold.
    f1, accuracy = int(f1_K.argmax()), int(accuracy_K.argmax())
    # With k = 0 the threshold lies above every probability.
    value_K = np.append(np.nextafter(value_N[0], np.inf), value_N)
    return {
        "best_f1": float(f1_K[f1]),
        "threshold_f1": float(value_K[f1]),
        "best_accuracy": float(accuracy_K[accuracy]),
        "threshold_accuracy": float(value_K[accuracy]),
    }
