"""Scores of a classifier that learns from soft targets; some of its examples have a label as well."""

import math
from typing import Self

import numpy as np

from nlu.metrics.classes import ClassScorer
from nlu.metrics.scores import Columns, Record, Scores

OF_LABELS = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc")
BINARY = ("f1", "precision", "recall", "auc", "average_precision")


class SoftScorer(Columns):
    """`loss`, `agreement` with the most probable class of the soft targets, and the scores of a classifier.

    A record has what `ClassScorer` needs, `target`, the most probable class of its soft target or None without one, and
    `is_labelled`. `loss` is the mean of all examples, `agreement` of those with a soft target, and the other scores are
    of those with a label. A score without such examples is NaN. The table by label is of the labels or, if the set has
    none, of `target`. Memory: twice that of `ClassScorer`.
    """

    def __init__(self, names: list[str]):
        super().__init__(names, sums=["loss"])
        self.labelled, self.soft = ClassScorer(names), ClassScorer(names)

    def add(self, record: Record) -> None:
        super().add(record)
        if record["is_labelled"]:
            self.labelled.add(record)
        if record["target"] is not None:
            self.soft.add({**record, "label": record["target"]})

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.labelled.merge(other.labelled)
        self.soft.merge(other.soft)

    def known(self) -> np.ndarray:
        return self.labelled.known()

    def drawn_from(self, known: np.ndarray) -> None:
        self.labelled.drawn_from(known)

    def result(self) -> Scores:
        names = (*OF_LABELS, *(BINARY if len(self.names) == 2 else ()))
        metrics = {"loss": self.mean("loss"), "agreement": math.nan} | dict.fromkeys(names, math.nan)
        table = []
        if len(self.soft):
            of_soft = self.soft.result()
            metrics["agreement"], table = of_soft.metrics["accuracy"], of_soft.by_label
        if len(self.labelled):
            of_labels = self.labelled.result()
            metrics |= {name: of_labels.metrics[name] for name in names}
            table = of_labels.by_label
        return Scores(metrics, table)
