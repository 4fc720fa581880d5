"""Classify texts or pairs of texts: one label for each example. Axes: N examples, C classes."""

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Target
from nlu.losses.loss import Loss
from nlu.metrics.classes import ClassScorer, log_probabilities
from nlu.metrics.scores import Scorer
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Outputs, RowsOfLogits, to_host

TINY = 1e-12
"""the least probability in the loss"""


class Classify(RowsOfLogits):
    """Predict one of several classes for a text."""

    layouts: tuple[str, ...] = ("single",)
    target = "nlu.data.targets.Classes"
    heads: ClassVar[tuple[str, ...]] = ("nlu.models.heads.linear.LinearHead", "nlu.models.heads.mlp.MlpHead")
    scores = "nlu.metrics.classes.ClassScorer"
    kind = "nlu.metrics.kinds.ClassKind"
    metrics: tuple[str, ...] = ("accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "mcc", "loss")
    binary_metrics: tuple[str, ...] = ("f1", "precision", "recall", "auc", "average_precision")
    default_metric = "accuracy"
    lower_is_better: tuple[str, ...] = ("loss",)

    def __init__(self, loss: Loss, target: Target):
        """No options."""
        super().__init__(loss, target)

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        return class_predictions(self.loss, self.known.names, to_host(outputs["logits"]))

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        return class_records(self.loss, self.known.names, batch.targets["labels"].numpy(), to_host(outputs["logits"]))

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        # The divergence of softmax outputs would count probabilities that this loss does not predict.
        if isinstance(self.loss, Deciding):
            return self.loss.divergence(first["logits"], second["logits"])
        return super().divergence(batch, first, second)

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        return ClassScorer(self.known.names)


@runtime_checkable
class Deciding(Protocol):
    """A loss that does not interpret logits by a softmax over classes."""

    def probabilities(self, logits_NC: Tensor) -> Tensor:
        """Return the probability of each class, (N, C); they need not add up to 1."""

    def decide(self, logits_NC: Tensor) -> Tensor:
        """Return the predicted class; (N,), int64."""

    def divergence(self, first_NC: Tensor, second_NC: Tensor) -> Tensor:
        """Return a symmetric divergence of two predictions, summed over rows."""


def class_predictions(loss: Loss, names: list[str], logits_NC: np.ndarray) -> list[dict[str, object]]:
    """Return for each row the predicted class, its probability and those of all classes."""
    best_N, probs_NC, _ = _decided(loss, logits_NC)
    return _named(names, best_N, probs_NC)


def class_records(loss: Loss, names: list[str], label_N: np.ndarray, logits_NC: np.ndarray) -> list[dict[str, object]]:
    """Return a record for each row: its label, the result of `class_predictions` and the negative log likelihood."""
    best_N, probs_NC, log_probs_NC = _decided(loss, logits_NC)
    loss_N = -log_probs_NC[np.arange(len(label_N)), label_N]
    records = [
        {"label": names[label], **predicted, "loss": value}
        for label, predicted, value in zip(
            label_N.tolist(), _named(names, best_N, probs_NC), loss_N.tolist(), strict=True
        )
    ]
    # Curves and areas (auc, average_precision) sort by the margin, since probabilities near 1 round to equal numbers
    # and would tie.
    if len(names) == 2:
        for record, margin in zip(records, (log_probs_NC[:, 1] - log_probs_NC[:, 0]).tolist(), strict=True):
            record["margin"] = margin
    return records


def _decided(loss: Loss, logits_NC: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the predicted class of each row, (N,), all probabilities and their logarithms, (N, C).

    They are those of the loss if it is `Deciding`, else a softmax and its argmax.
    """
    # float64 before the logarithm; TINY keeps the reported loss finite where a probability underflows to 0.
    if isinstance(loss, Deciding):
        logits = torch.from_numpy(logits_NC)
        probs_NC = loss.probabilities(logits).double().numpy()
        return loss.decide(logits).numpy(), probs_NC, np.log(np.maximum(probs_NC, TINY))
    log_probs_NC = log_probabilities(logits_NC)
    return log_probs_NC.argmax(1), np.exp(log_probs_NC), log_probs_NC


def _named(names: list[str], best_N: np.ndarray, probs_NC: np.ndarray) -> list[dict[str, object]]:
    return [
        {"prediction": names[best], "probability": probs[best], "probabilities": dict(zip(names, probs, strict=True))}
        for best, probs in zip(best_N.tolist(), probs_NC.tolist(), strict=True)
    ]


class Match(Classify):
    """Predict the relation of two texts."""

    layouts = ("pair",)
