"""Thresholds of classes that are chosen on a set: the highest F-beta of each class, or all that reach a precision.

F-beta is (1 + beta^2) P R / (beta^2 P + R) of precision P and recall R (van Rijsbergen 1979, Information Retrieval,
chapter 7). Axes: N rows, of which M may be predicted as a class, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nlu.metrics.classes import ClassScorer, Decided
from nlu.metrics.scores import Record

AUTO = "auto"
SETTING = "threshold"
"""the metric with a threshold; that of a class is threshold/CLASS"""
UNREACHED = float(np.nextafter(np.float32(1), np.float32(2)))
"""the threshold of a class that has too low a precision everywhere: above any probability"""


@dataclass(frozen=True)
class Aim:
    """What the threshold of each class is chosen for."""

    beta: float = 1.0
    """weight of recall against precision in the F score that it maximizes"""
    precision: float | None = None
    """instead of that, the precision that it reaches with the highest recall"""

    def threshold(self, probability_M: np.ndarray, is_right_M: np.ndarray, wanted: int) -> float | None:
        """Return the threshold of a class for rows with these probabilities of it; of several the lowest.

        `wanted`: the rows of the class, also those that are not among the M. A threshold lies between two probabilities
        that occur. None without a row that is right at any.
        """
        order_M = np.argsort(-probability_M, kind="stable")
        probability_M, right_M = probability_M[order_M], np.cumsum(is_right_M[order_M])
        if not wanted or not len(right_M) or not right_M[-1]:
            return None
        # A cut must lie between different probabilities.
        is_cut_M = np.append(probability_M[1:] != probability_M[:-1], True)
        predicted_M = np.arange(1, len(right_M) + 1)
        if self.precision is None:
            weight = self.beta**2
            value_M = np.where(is_cut_M, (1 + weight) * right_M / (predicted_M + weight * wanted), -1.0)
        else:
            value_M = np.where(is_cut_M & (right_M >= self.precision * predicted_M), right_M, -1)
            if value_M.max() < 0:
                return UNREACHED
        # argmax takes the first of equal values; from behind, that is the lowest threshold.
        best = len(value_M) - 1 - int(value_M[::-1].argmax())
        return between(float(probability_M[best]), float(probability_M[best + 1]) if best + 1 < len(value_M) else 0.0)


def between(above: float, below: float) -> float:
    """Return a float32 between two probabilities, which are compared as float32; `above` if there is none."""
    middle = float(np.float32((above + below) / 2))
    return middle if below < middle <= above else above


def is_setting(metric: str) -> bool:
    """Return whether a metric is a threshold, which is neither better nor worse than another."""
    return SETTING in metric.split("/")


def of_classes(metrics: Mapping[str, float], names: Sequence[str]) -> list[float] | None:
    """Return the thresholds of all classes in the metrics of a set; None if they are not there."""
    found = [metrics.get(f"{SETTING}/{name}") for name in names]
    return None if None in found else [float(value) for value in found if value is not None]


def as_metrics(thresholds_C: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Return the thresholds of classes as metrics of a set."""
    return {f"{SETTING}/{name}": value for name, value in zip(names, thresholds_C, strict=True)}


class ThresholdScorer(Decided):
    """Scores of a classifier whose less certain predictions are replaced by one class, at thresholds by class.

    The threshold of a class is chosen among the rows for which it is the most probable one, and applies to these. With
    an aim, a record holds as `prediction` the most probable class, and its `probability`; without one, predictions are
    final, as in a file of predictions. Memory: 24 bytes for each row, 32 with two classes.
    """

    def __init__(
        self,
        names: list[str],
        *,
        aim: Aim | None = None,
        rejected: int = 0,
        given: Sequence[float] | None = None,
        chosen_classes: Sequence[str] | None = None,
    ):
        """`rejected`: number of the class of the other rows. `given`: thresholds that were chosen on another set."""
        ranked = {"margin": "d"} if len(names) == 2 else {}
        super().__init__(names, sums=["loss"], label="l", prediction="l", probability="d", **ranked)
        self.aim, self.rejected, self.given, self.chosen_classes = aim, rejected, given, chosen_classes

    def add(self, record: Record) -> None:
        classes = {name: self.number[record[name]] for name in ("label", "prediction")}
        numbers = {name: record.get(name, 0.0) for name in ("probability", "loss", "margin")}
        self.keep(classes | numbers)

    def decided(self) -> tuple[ClassScorer, dict[str, float]]:
        scorer = ClassScorer(self.names, chosen_classes=self.chosen_classes)
        label_N, best_N, probability_N = self.arrays("label", "prediction", "probability")
        scorer.examples, scorer.sums = self.examples, self.sums
        scorer.columns = {name: self.columns[name] for name in scorer.columns}
        thresholds_C: Sequence[float] = ()
        if self.aim is not None:
            thresholds_C = self.given or [
                self.chosen(self.aim, label_N, best_N == number, probability_N, number)
                for number in range(len(self.names))
            ]
            best_N = np.where(probability_N >= np.array(thresholds_C)[best_N], best_N, self.rejected)
        scorer.count(label_N, best_N)
        return scorer, as_metrics(thresholds_C, self.names) if thresholds_C else {}

    def chosen(
        self, aim: Aim, label_N: np.ndarray, is_best_N: np.ndarray, probability_N: np.ndarray, number: int
    ) -> float:
        """Return the threshold of a class."""
        is_class_N = label_N == number
        found = aim.threshold(probability_N[is_best_N], is_class_N[is_best_N], int(is_class_N.sum()))
        # A row that is rejected anyway needs no threshold, nor does a class of which nothing is known.
        return 0.0 if found is None or number == self.rejected else found
