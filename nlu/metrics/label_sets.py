"""Scores of predicted sets of labels. Axes: N examples, C labels."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from nlu.config.by_class import by_class
from nlu.metrics.classes import average_precision, quotients
from nlu.metrics.scores import ExactSum, LabelRow, Record, Scores, ratio
from nlu.metrics.thresholds import AUTO, SETTING, Aim, as_metrics


class LabelSetScorer:
    """Micro, macro and sample F1, exact match and average precision of predicted sets of labels.

    A record holds `label`, the list of gold labels, `probabilities` of all labels and `loss`. The labels with a
    probability of at least `threshold` are predicted. With `threshold` None these are the `prediction` of the records
    if they have one, as those of folds that each had its own threshold; else the threshold with the highest micro F1 on
    the same set is used, and the metric `threshold` is its value. With `threshold` "auto" each label has its own,
    chosen by `aim`, 0.5 if no row of the set has the label; these are the metrics threshold/LABEL. For an example
    without labels, sample F1 and exact match are 1 if none is predicted. Macro averages are over labels that occur or
    are predicted, average precision is over labels that occur; records that keep only the largest probabilities have
    none. Memory: 5 bytes for each example and label, for the exact area under the curve.
    """

    def __init__(
        self, names: list[str], threshold: float | Mapping[Any, float] | str | None = None, *, aim: Aim | None = None,
        given: Sequence[float] | None = None,
    ):  # fmt: skip
        """`given`: thresholds by label that were chosen on another set."""
        self.names, self.threshold, self._aim, self._given = names, threshold, aim or Aim(), given
        self._number = {name: number for number, name in enumerate(names)}
        self._probabilities, self._is_label, self._is_predicted = array("f"), bytearray(), bytearray()
        self._loss = ExactSum()
        self._has_all = True
        self._of_all: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, record: Record) -> None:
        self._is_label += self._mask(record["label"])
        if self.threshold in (None, AUTO) and "prediction" in record:
            self._is_predicted += self._mask(record["prediction"])
        of_labels = record["probabilities"]
        self._has_all = self._has_all and len(of_labels) == len(self.names)
        self._probabilities.extend(of_labels.get(name, 0.0) for name in self.names)
        self._loss.add(record["loss"])

    def _mask(self, names: Sequence[str]) -> bytearray:
        mask = bytearray(len(self.names))
        for name in names:
            mask[self._number[name]] = 1
        return mask

    def merge(self, other: Self) -> None:
        self._is_label += other._is_label
        self._is_predicted += other._is_predicted
        self._has_all = self._has_all and other._has_all
        self._probabilities.extend(other._probabilities)
        self._loss.merge(other._loss)

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return F1 and average precision of each label, NaN if averages leave it out; (C,) each.

        A label that a resample lacks has its scores in all examples, so that averages are over the same labels in every
        resample.
        """
        label_NC, probability_NC, predicted_NC, _ = self._arrays()
        both_C = predicted_NC.sum(0) + label_NC.sum(0)
        f1_C = np.where(both_C > 0, quotients(2 * (label_NC & predicted_NC).sum(0), both_C), np.nan)
        precision_C = np.array(
            [
                average_precision(probability_NC[:, c], label_NC[:, c]) if label_NC[:, c].any() else np.nan
                for c in range(len(self.names))
            ]
        )
        if self._of_all is None:
            return f1_C, precision_C
        own_and_all = zip((f1_C, precision_C), self._of_all, strict=True)
        f1_C, precision_C = (np.where(np.isnan(own_C), all_C, own_C) for own_C, all_C in own_and_all)
        return f1_C, precision_C

    def drawn_from(self, known: tuple[np.ndarray, np.ndarray]) -> None:
        self._of_all = known

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, float]]:
        """Return labels, probabilities and predictions, (N, C) each, and as metrics the thresholds that it chose."""
        # Copies: a view would lock the buffer, and adding or merging more examples would raise BufferError.
        label_NC, given_NC = (
            np.frombuffer(bytes(mask), np.uint8).reshape(-1, len(self.names)).astype(bool)
            for mask in (self._is_label, self._is_predicted)
        )
        probability_NC = np.frombuffer(self._probabilities.tobytes(), np.float32).reshape(label_NC.shape)
        if len(given_NC):
            return label_NC, probability_NC, given_NC, {}
        if isinstance(self.threshold, Mapping):
            at_least, chosen = by_class("task.threshold", self.threshold, self.names, 0.5), {}
        elif self.threshold == AUTO:
            at_least = self._of_labels(label_NC, probability_NC) if self._given is None else list(self._given)
            chosen = as_metrics(at_least, self.names)
        else:
            one = best_threshold(label_NC, probability_NC) if self.threshold is None else float(self.threshold)
            at_least, chosen = [one] * len(self.names), {SETTING: one}
        return label_NC, probability_NC, probability_NC >= np.array(at_least, np.float32), chosen

    def _of_labels(self, label_NC: np.ndarray, probability_NC: np.ndarray) -> list[float]:
        found = (
            self._aim.threshold(probability_N, label_N, int(label_N.sum()))
            for probability_N, label_N in zip(probability_NC.T, label_NC.T, strict=True)
        )
        return [0.5 if one is None else one for one in found]

    def result(self) -> Scores:
        label_NC, _, predicted_NC, chosen = self._arrays()
        right_C, predicted_C, wanted_C = (
            mask_NC.sum(0) for mask_NC in (label_NC & predicted_NC, predicted_NC, label_NC)
        )
        f1_C, precision_C = self.known()
        sizes_N = label_NC.sum(1) + predicted_NC.sum(1)
        right_N = (label_NC & predicted_NC).sum(1)
        f1_N = np.where(sizes_N > 0, 2 * right_N / np.maximum(sizes_N, 1), 1.0)
        scores = {
            "f1_micro": ratio(2 * right_C.sum(), predicted_C.sum() + wanted_C.sum()),
            "f1_macro": _mean_of_known(f1_C, 0.0),
            # A sum by distinct value does not depend on the order of examples.
            "f1_samples": _mean_by_value(f1_N),
            "precision_micro": ratio(right_C.sum(), predicted_C.sum()),
            "recall_micro": ratio(right_C.sum(), wanted_C.sum()),
            **({"average_precision": _mean_of_known(precision_C, float("nan"))} if self._has_all else {}),
            "exact_match": float((label_NC == predicted_NC).all(1).sum() / len(label_NC)),
            **chosen,
            "loss": self._loss.value / len(label_NC),
        }
        by_label: list[LabelRow] = [
            {
                "label": name,
                "examples": int(wanted_C[i]),
                "correct": int(right_C[i]),
                "precision": ratio(int(right_C[i]), int(predicted_C[i])),
                "recall": ratio(int(right_C[i]), int(wanted_C[i])),
                "f1": float(np.nan_to_num(f1_C[i])),
            }
            for i, name in enumerate(self.names)
        ]
        return Scores({name: float(value) for name, value in scores.items()}, by_label)


def best_threshold(label_NC: np.ndarray, probability_NC: np.ndarray) -> float:
    """Return the threshold with the highest micro F1, between two probabilities that occur; of several the lowest.

    Every cut between neighbouring probabilities is tried, not a grid. Without any gold label all thresholds have the
    same micro F1, and the result is 0.5.
    """
    found = Aim().threshold(probability_NC.reshape(-1), label_NC.reshape(-1), int(label_NC.sum()))
    return 0.5 if found is None else found


def _mean_by_value(values_N: np.ndarray) -> float:
    value_V, count_V = np.unique(values_N, return_counts=True)
    return float((value_V * count_V).sum() / len(values_N))


def _mean_of_known(values_C: np.ndarray, otherwise: float) -> float:
    known = values_C[~np.isnan(values_C)]
    return float(np.mean(known)) if len(known) else otherwise
