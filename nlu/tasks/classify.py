"""Classify a text, or match two: one label for each example. Axes: N examples, C classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nlu.data.collate import Batch
from nlu.data.store import Examples
from nlu.metrics.classes import ClassScorer, log_probabilities
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Outputs, RowsOfLogits, to_host


class Classify(RowsOfLogits):
    """Give a text one of several classes."""

    layouts = ("single",)
    target = "nlu.data.targets.Classes"
    heads = ("nlu.models.heads.linear.LinearHead",)
    losses = (
        "nlu.losses.cross_entropy.CrossEntropy", "nlu.losses.focal.Focal", "nlu.losses.ghm_c.GhmC",
        "nlu.losses.circle.Circle", "nlu.losses.taylor.Taylor", "nlu.losses.bce.Bce",
    )  # fmt: skip
    scores = "nlu.metrics.classes.ClassScorer"
    metrics = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc", "loss")
    binary_metrics = ("f1", "precision", "recall", "auc", "average_precision")
    default_metric = "accuracy"
    lower_is_better = ("loss",)

    def __init__(self, loss: Any, target: Any):
        """No options."""
        super().__init__(loss, target)

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, Any]]:
        return class_records(self.loss, self.target_.names, batch.targets["labels"].numpy(), to_host(outputs["logits"]))

    def scorer(self, decided: Mapping[str, float]) -> ClassScorer:
        return ClassScorer(self.target_.names)


def class_records(loss: Any, names: list[str], label_N: np.ndarray, logits_NC: np.ndarray) -> list[dict[str, Any]]:
    """Return a record for each row: its label, the prediction, all probabilities and the negative log likelihood.

    A loss may say by itself what logits predict (`predictions`) and which probabilities they stand for
    (`log_probabilities`); without that, softmax and its largest.
    """
    log_probs_NC = getattr(loss, "log_probabilities", log_probabilities)(logits_NC)
    best_N = loss.predictions(logits_NC) if hasattr(loss, "predictions") else log_probs_NC.argmax(1)
    probs_NC = np.exp(log_probs_NC)
    records = []
    for row, (label, best) in enumerate(zip(label_N.tolist(), best_N.tolist(), strict=True)):
        record = {
            "label": names[label], "prediction": names[best], "probability": float(probs_NC[row, best]),
            "probabilities": dict(zip(names, probs_NC[row].tolist(), strict=True)),
            "loss": -float(log_probs_NC[row, label]),
        }  # fmt: skip
        if len(names) == 2:
            record["margin"] = float(log_probs_NC[row, 1] - log_probs_NC[row, 0])
        records.append(record)
    return records


class Match(Classify):
    """Say how two texts relate."""

    layouts = ("pair",)
