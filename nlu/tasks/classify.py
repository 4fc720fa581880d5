"""Classify texts or pairs of texts: one label for each example. Axes: N examples, C classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.nearest import by_class, require_known
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Target
from nlu.losses.loss import Loss
from nlu.metrics.classes import ClassScorer, log_probabilities
from nlu.metrics.scores import Scorer
from nlu.metrics.thresholds import Aim, ThresholdScorer, of_classes
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, RowsOfLogits, to_host

TINY = 1e-12
"""the least probability in the loss"""


@takes(schemas.Classify)
class Classify(RowsOfLogits):
    """Predict one of several classes for a text."""

    def __init__(self, loss: Loss, target: Target, keys: schemas.Classify):
        """Raises UserError for classes that the data do not have."""
        super().__init__(loss, target)
        if isinstance(loss, NeedsNames):
            loss.take_names(target.names)
        self.thresholds: list[float] | None = None
        self.fallback = 0
        self.chosen_classes = keys.chosen_classes and list(map(str, keys.chosen_classes))
        if keys.threshold is not None and isinstance(loss, Deciding):
            raise UserError(
                f"task.threshold is {keys.threshold}, but this loss decides by its own rule; set task.threshold=null"
            )
        self.aim = None
        if isinstance(keys.threshold, str):
            self.aim = Aim(keys.threshold_beta, keys.threshold_precision)
        elif keys.threshold is not None:
            self.thresholds = by_class("task.threshold", keys.threshold, target.names, 0.0)
        if keys.fallback is not None:
            require_known("task.fallback", [keys.fallback], target.names)
            self.fallback = target.names.index(keys.fallback)
        require_known("task.chosen_classes", self.chosen_classes or (), target.names)
        more = [name for key, names in self.metrics_by_key.items() if getattr(keys, key) for name in names]
        self.metrics: tuple[str, ...] = (*self.metrics, *more)

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        best_B, probs_BC, _ = _decided(self.loss, to_host(outputs["logits"]))
        return _named(self.known.names, best_B, probs_BC, self.decide)

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        logits_BC = to_host(outputs["logits"])
        return class_records(self.loss, self.known.names, batch.targets["labels"].numpy(), logits_BC, self.decide)

    def decide(self, best: int, probabilities: Sequence[float]) -> int:
        """Return the predicted class, given the most probable one: that one, or the fallback below the threshold.

        Thresholds that a set chooses are not known yet; `finished` has them.
        """
        return self._reached(best, probabilities, self.thresholds)

    def _reached(self, best: int, probabilities: Sequence[float], thresholds_C: Sequence[float] | None) -> int:
        return best if thresholds_C is None or probabilities[best] >= thresholds_C[best] else self.fallback

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        """Return the record, decided by the thresholds; those that a set chooses are in `metrics`."""
        names = self.known.names
        thresholds_C = self.thresholds if self.aim is None else of_classes(metrics, names)
        if thresholds_C is None:
            return record
        of_class = record["probabilities"]
        assert isinstance(of_class, dict), "a result of `predictions`"
        probabilities = [of_class[name] for name in names]
        chosen = self._reached(probabilities.index(max(probabilities)), probabilities, thresholds_C)
        return {**record, "prediction": names[chosen], "probability": probabilities[chosen]}

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        # The divergence of softmax outputs would count probabilities that this loss does not predict.
        if isinstance(self.loss, Deciding):
            return self.loss.divergence(first["logits"], second["logits"])
        return super().divergence(batch, first, second)

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        if self.aim is not None:
            given = of_classes(decided, self.known.names)
            return ThresholdScorer(
                self.known.names, aim=self.aim, rejected=self.fallback, given=given, chosen_classes=self.chosen_classes
            )
        return ClassScorer(self.known.names, chosen_classes=self.chosen_classes)


@runtime_checkable
class Deciding(Protocol):
    """A loss that does not interpret logits by a softmax over classes."""

    def probabilities(self, logits_NC: Tensor) -> Tensor:
        """Return the probability of each class, (N, C); they need not add up to 1."""

    def decide(self, logits_NC: Tensor) -> Tensor:
        """Return the predicted class; (N,), int64."""

    def divergence(self, first_NC: Tensor, second_NC: Tensor) -> Tensor:
        """Return a symmetric divergence of two predictions, summed over rows."""


@runtime_checkable
class NeedsNames(Protocol):
    """A loss with options by class that predictions need, which may never see the training set."""

    def take_names(self, names: Sequence[str]) -> None:
        """Take the names of the classes. Raises UserError if an option does not fit them."""


Decide = Callable[[int, Sequence[float]], int]
"""returns the predicted class, given the best one and the probabilities of all"""


def class_records(
    loss: Loss, names: list[str], label_N: np.ndarray, logits_NC: np.ndarray, decide: Decide | None = None
) -> list[dict[str, object]]:
    """Return a record for each row: its label, its prediction and the negative log likelihood."""
    best_N, probs_NC, log_probs_NC = _decided(loss, logits_NC)
    loss_N = -log_probs_NC[np.arange(len(label_N)), label_N]
    records = [
        {"label": names[label], **predicted, "loss": value}
        for label, predicted, value in zip(
            label_N.tolist(), _named(names, best_N, probs_NC, decide), loss_N.tolist(), strict=True
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


def _named(
    names: list[str], best_N: np.ndarray, probs_NC: np.ndarray, decide: Decide | None
) -> list[dict[str, object]]:
    rows = list(zip(best_N.tolist(), probs_NC.tolist(), strict=True))
    if decide is not None:
        rows = [(decide(best, probs), probs) for best, probs in rows]
    return [
        {"prediction": names[best], "probability": probs[best], "probabilities": dict(zip(names, probs, strict=True))}
        for best, probs in rows
    ]


@takes(schemas.Match)
class Match(Classify):
    """Predict the relation of two texts."""
