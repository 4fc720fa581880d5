"""Scores of a classifier. Axes: N examples, C classes, P pairs of a class and a prediction that occur."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from nlu.metrics.scores import ExactSum, Record, Scores

METRICS = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc", "loss")
BINARY_METRICS = ("f1", "precision", "recall", "auc", "average_precision")


def log_probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis, in float64."""
    shifted = logits_NC.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class ClassScorer:
    """Scores of any classifier and, with two classes, those that count the second one as positive.

    A record holds `label`, `prediction`, `loss` (negative log likelihood in nats) and, with two classes, `margin`,
    anything that grows with the probability of the second one. Averages run over the classes that occur as label or
    prediction. Scores that need both classes among the labels (auc, average_precision) are NaN where one is absent.
    Memory: one number for each pair of classes and, with two classes alone, 9 bytes an example, which the exact area
    under a curve needs.
    """

    def __init__(self, names: list[str]):
        self.names = names
        self._number = {name: number for number, name in enumerate(names)}
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._loss = ExactSum()
        self._margins, self._positive = array("d"), array("b")

    def add(self, record: Record) -> None:
        label, prediction = self._number[record["label"]], self._number[record["prediction"]]
        self._pairs[label, prediction] += 1
        self._loss.add(record["loss"])
        if len(self.names) == 2:
            self._margins.append(record["margin"])
            self._positive.append(label)

    def merge(self, other: Self) -> None:
        self._pairs.update(other._pairs)
        self._loss.merge(other._loss)
        self._margins.extend(other._margins)
        self._positive.extend(other._positive)

    def result(self) -> Scores:
        from sklearn import metrics

        pairs = sorted(self._pairs)
        counts_P = np.array([self._pairs[pair] for pair in pairs])
        label_P, prediction_P = np.array(pairs).T
        # Whole numbers as weights: the sums are those of the single examples, exactly.
        common = {"y_true": label_P, "y_pred": prediction_P, "sample_weight": counts_P}
        several = len(np.union1d(label_P, prediction_P)) > 1
        scores = {
            "accuracy": counts_P[label_P == prediction_P].sum() / counts_P.sum(),
            "f1_macro": metrics.f1_score(**common, average="macro", zero_division=0),
            "f1_weighted": metrics.f1_score(**common, average="weighted", zero_division=0),
            "precision_macro": metrics.precision_score(**common, average="macro", zero_division=0),
            "recall_macro": metrics.recall_score(**common, average="macro", zero_division=0),
            "mcc": metrics.matthews_corrcoef(**common) if several else 0.0,
            "loss": self._loss.value / int(counts_P.sum()),
        }
        if len(self.names) == 2:
            scores |= self._binary(common)
        return Scores({name: float(value) for name, value in scores.items()}, self._by_label(common))

    def _binary(self, common: dict[str, Any]) -> dict[str, float]:
        from sklearn import metrics

        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            **common, average="binary", pos_label=1, zero_division=0
        )
        margin_N, positive_N = np.array(self._margins), np.array(self._positive)
        both = 0 < positive_N.sum() < len(positive_N) and bool(np.isfinite(margin_N).all())
        return {
            "f1": f1, "precision": precision, "recall": recall,
            "auc": metrics.roc_auc_score(positive_N, margin_N) if both else float("nan"),
            "average_precision": metrics.average_precision_score(positive_N, margin_N) if both else float("nan"),
        }  # fmt: skip

    def _by_label(self, common: dict[str, Any]) -> list[dict[str, Any]]:
        """Precision, recall, F1, the number of examples and of correct ones for every class that may occur."""
        from sklearn import metrics

        precision, recall, f1, support = metrics.precision_recall_fscore_support(
            **common, labels=list(range(len(self.names))), average=None, zero_division=0
        )
        return [
            {
                "label": name, "examples": int(support[i]), "correct": self._pairs[i, i],
                "precision": float(precision[i]), "recall": float(recall[i]), "f1": float(f1[i]),
            }
            for i, name in enumerate(self.names)
        ]  # fmt: skip


def only_prediction(by_label: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the class that every example was given, by the scores by label; None where there are several, or one that
    is never right."""
    examples = sum(entry["examples"] for entry in by_label)
    for entry in by_label:
        # Examples that were given a class are those that were rightly given it, over its precision.
        if entry["correct"] and len(by_label) > 1 and round(entry["correct"] / entry["precision"]) == examples:
            return str(entry["label"])
    return None
