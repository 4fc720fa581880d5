"""Learn classes from soft targets: probabilities or logits of each class, for a text or a pair of texts.

Axes: N examples, C classes.
"""

from collections.abc import Mapping

import numpy as np

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import SoftClasses
from nlu.losses.loss import Loss
from nlu.metrics.classes import log_probabilities
from nlu.metrics.soft import SoftScorer
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.classify import Classify, class_records
from nlu.tasks.task import Outputs, to_host


@takes(schemas.Soft)
class Soft(Classify):
    """Predict one of several classes, learned from a distribution over them, such as that of a larger model."""

    def __init__(self, loss: Loss, target: SoftClasses):
        """Raises UserError if the loss compares logits, but rows have probabilities."""
        super().__init__(loss, target, schemas.Classify())
        if getattr(loss, "needs_logits", False) and target.has_probabilities:
            raise UserError("loss compares logits, but the rows have probabilities; set loss=kl")

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return the record of a classifier, whose label is the most probable class of the target where a row has none.

        `loss` is the divergence from the target at temperature 1, `target` the most probable class of a soft target.
        """
        logits_NC, names = to_host(outputs["logits"]), self.known.names
        targets = {name: values.numpy() for name, values in batch.targets.items()}
        best_N = targets["labels"].argmax(1)
        label_N = np.where(targets["classes"] < 0, best_N, targets["classes"])
        loss_N = divergence(targets["labels"], logits_NC)
        found = class_records(self.loss, names, label_N, logits_NC)
        for row, record in enumerate(found):
            record["loss"] = float(loss_N[row])
            record["target"] = names[best_N[row]] if targets["is_soft"][row] else None
            record["is_labelled"] = bool(targets["classes"][row] >= 0)
        return found

    def scorer(self, decided: Mapping[str, float]) -> SoftScorer:
        return SoftScorer(self.known.names)


def divergence(targets_NC: np.ndarray, logits_NC: np.ndarray) -> np.ndarray:
    """Return the Kullback-Leibler divergence of the softmax of each row of logits from that of its target; (N,), nats.

    It is computed in float64. A target of minus infinity is a probability of 0.
    """
    log_p_NC, log_q_NC = log_probabilities(targets_NC), log_probabilities(logits_NC)
    p_NC = np.exp(log_p_NC)
    return (p_NC * (np.where(p_NC > 0, log_p_NC, 0) - log_q_NC)).sum(1)
