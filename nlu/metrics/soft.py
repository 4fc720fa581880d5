"""Scores of a classifier that learns from soft targets; some of its examples have a label as well."""

import math
from typing import Any, Self

from nlu.metrics.classes import ClassScorer
from nlu.metrics.scores import ExactSum, Record, Scores

OF_LABELS = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc")
BINARY = ("f1", "precision", "recall", "auc", "average_precision")


class SoftScorer:
    """`loss`, `agreement` with the most probable class of the soft targets, and the scores of a classifier.

    A record has what `ClassScorer` needs, `target`, the most probable class of its soft target or None without one, and
    `is_labelled`. `loss` is the mean of all examples, `agreement` of those with a soft target, and the other scores are
    of those with a label. A score without such examples is NaN. The table by label is of the labels or, if the set has
    none, of `target`. Memory: twice that of `ClassScorer`.
    """

    def __init__(self, names: list[str]):
        self._loss, self._rows = ExactSum(), 0
        self._is_binary = len(names) == 2
        self._labelled, self._soft = ClassScorer(names), ClassScorer(names)
        self._num_labelled = self._num_soft = 0

    def add(self, record: Record) -> None:
        self._loss.add(record["loss"])
        self._rows += 1
        if record["is_labelled"]:
            self._labelled.add(record)
            self._num_labelled += 1
        if record["target"] is not None:
            self._soft.add({**record, "label": record["target"]})
            self._num_soft += 1

    def merge(self, other: Self) -> None:
        self._loss.merge(other._loss)
        self._labelled.merge(other._labelled)
        self._soft.merge(other._soft)
        self._rows += other._rows
        self._num_labelled += other._num_labelled
        self._num_soft += other._num_soft

    def known(self) -> Any:
        return self._labelled.known() if self._num_labelled else None

    def drawn_from(self, known: Any) -> None:
        if known is not None:
            self._labelled.drawn_from(known)

    def result(self) -> Scores:
        soft = self._soft.result() if self._num_soft else None
        labelled = self._labelled.result() if self._num_labelled else None
        metrics = {
            "loss": self._loss.value / self._rows,
            "agreement": soft.metrics["accuracy"] if soft is not None else math.nan,
        }
        names = (*OF_LABELS, *(BINARY if self._is_binary else ()))
        metrics |= {name: labelled.metrics[name] if labelled is not None else math.nan for name in names}
        shown = labelled or soft
        assert shown is not None, "an example has a label or a soft target"
        return Scores(metrics, shown.by_label)
