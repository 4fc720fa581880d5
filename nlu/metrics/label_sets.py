"""Scores of predicted sets of labels. Axes: N examples, C labels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlu.config.nearest import by_class
from nlu.metrics.scores import Columns, Record, Scores, by_label, micro, precision_recall_f1
from nlu.metrics.thresholds import AUTO, SETTING, Aim, as_metrics


class LabelSetScorer(Columns):
    """Micro, macro and sample F1, exact match and average precision of predicted sets of labels.

    A record holds `label`, the list of gold labels, `probabilities` of all labels and `loss`. The labels with a
    probability of at least `threshold` are predicted. With `threshold` None these are the `prediction` of the records
    if they have one, as those of folds that each had its own threshold; else the threshold with the highest micro F1 on
    the same set is used, and the metric `threshold` is its value. With `threshold` "auto" each label has its own,
    chosen by `aim`, 0.5 if no row of the set has the label; these are the metrics threshold/LABEL. For an example
    without labels, sample F1 and exact match are 1 if none is predicted. Macro averages are over labels that occur or
    are predicted, average precision is over labels that occur; records that keep only the largest probabilities have
    none. Memory: 5 bytes for each example and label, 6 with predictions, for the exact area under the curve.
    """

    def __init__(
        self,
        names: list[str],
        threshold: float | Mapping[Any, float] | str | None = None,
        *,
        aim: Aim | None = None,
        given: Sequence[float] | None = None,
    ):
        """`given`: thresholds by label that were chosen on another set."""
        # The columns have a value for each label of an example.
        super().__init__(names, sums=["loss", "left_out"], label="b", prediction="b", probability="f")
        self.threshold, self.aim, self.given = threshold, aim or Aim(), given
        self.of_all: np.ndarray | None = None

    def add(self, record: Record) -> None:
        of_labels, columns = record["probabilities"], self.columns
        self.examples += 1
        columns["label"].extend(self.mask(record["label"]))
        if self.threshold in (None, AUTO) and "prediction" in record:
            columns["prediction"].extend(self.mask(record["prediction"]))
        columns["probability"].extend(of_labels.get(name, 0.0) for name in self.names)
        self.sums["left_out"].add(len(self.names) - len(of_labels))
        self.sums["loss"].add(record["loss"])

    def mask(self, names: Sequence[str]) -> list[bool]:
        chosen = {self.number[name] for name in names}
        return [number in chosen for number in range(len(self.names))]

    def known(self) -> np.ndarray:
        """Return precision, recall, F1 and average precision of each label, NaN without an example; (4, C).

        A label that a resample lacks has its scores in all examples, so that averages are over the same labels in every
        resample.
        """
        from sklearn.metrics import average_precision_score

        label_NC, probability_NC, predicted_NC, _ = self.decided()
        counts_3C = (label_NC & predicted_NC).sum(0), predicted_NC.sum(0), label_NC.sum(0)
        areas_C = [
            average_precision_score(label_N, probability_N) if label_N.any() else math.nan
            for label_N, probability_N in zip(label_NC.T, probability_NC.T, strict=True)
        ]
        found_4C = np.vstack([precision_recall_f1(*counts_3C), areas_C])
        return found_4C if self.of_all is None else np.where(np.isnan(found_4C), self.of_all, found_4C)

    def drawn_from(self, known: np.ndarray) -> None:
        self.of_all = known

    def decided(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, float]]:
        """Return labels, probabilities and predictions, (N, C) each, and as metrics the thresholds that it chose."""
        arrays = self.arrays("label", "prediction", "probability")
        label_NC, given_NC, probability_NC = (array_.reshape(-1, len(self.names)) for array_ in arrays)
        label_NC, given_NC = label_NC.astype(bool), given_NC.astype(bool)
        if len(given_NC):
            return label_NC, probability_NC, given_NC, {}
        chosen: dict[str, float] = {}
        if isinstance(self.threshold, Mapping):
            at_least = by_class("task.threshold", self.threshold, self.names, 0.5)
        elif self.threshold == AUTO:
            at_least = list(self.given or map(self.best, label_NC.T, probability_NC.T))
            chosen = as_metrics(at_least, self.names)
        else:
            one = self.best(label_NC, probability_NC) if self.threshold is None else float(self.threshold)
            at_least, chosen = [one] * len(self.names), {SETTING: one}
        return label_NC, probability_NC, probability_NC >= np.array(at_least, np.float32), chosen

    def best(self, is_label: np.ndarray, probability: np.ndarray) -> float:
        """Return the best threshold for one or all labels; of several the lowest, 0.5 without any gold label.

        Every cut between neighbouring probabilities is tried, not a grid.
        """
        found = self.aim.threshold(probability.reshape(-1), is_label.reshape(-1), int(is_label.sum()))
        return 0.5 if found is None else found

    def result(self) -> Scores:
        label_NC, _, predicted_NC, chosen = self.decided()
        right_NC, found_4C = label_NC & predicted_NC, self.known()
        right_C, predicted_C, wanted_C = (mask_NC.sum(0) for mask_NC in (right_NC, predicted_NC, label_NC))
        precision, recall, f1 = micro(right_C, predicted_C, wanted_C)
        sizes_N = label_NC.sum(1) + predicted_NC.sum(1)
        f1_N = np.where(sizes_N > 0, 2 * right_NC.sum(1) / np.maximum(sizes_N, 1), 1.0)
        scores = {
            "f1_micro": f1,
            "f1_macro": _mean_of_known(found_4C[2], 0.0),
            "f1_samples": math.fsum(f1_N.tolist()) / len(f1_N),
            "precision_micro": precision,
            "recall_micro": recall,
            "average_precision": _mean_of_known(found_4C[3], math.nan),
            "exact_match": float((label_NC == predicted_NC).all(1).mean()),
            **chosen,
            "loss": self.mean("loss"),
        }
        if self.total("left_out"):
            del scores["average_precision"]
        return Scores(scores, by_label(self.names, wanted_C, right_C, found_4C[:3]))


def _mean_of_known(values_C: np.ndarray, otherwise: float) -> float:
    known = values_C[~np.isnan(values_C)]
    return float(np.mean(known)) if len(known) else otherwise
