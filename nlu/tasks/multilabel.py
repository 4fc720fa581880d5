"""Predict any number of labels for a text or a pair of texts. Axes: B examples, C labels."""

from collections.abc import Mapping

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.config.nearest import by_class
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Target
from nlu.losses.loss import Loss, bernoulli_divergence, each_probability
from nlu.metrics.label_sets import LabelSetScorer
from nlu.metrics.thresholds import AUTO, SETTING, Aim, of_classes
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, RowsOfLogits, to_host


@takes(schemas.Multilabel)
class Multilabel(RowsOfLogits):
    """Predict all labels that apply to a text, each independently."""

    # A label applies to a text if it applies to a part of it.
    over_windows = "max"

    def __init__(self, loss: Loss, target: Target, keys: schemas.Multilabel):
        """Raises UserError for labels that the data do not have."""
        super().__init__(loss, target)
        self.threshold = keys.threshold
        self._at_least: dict[str, float] = {}
        if isinstance(keys.threshold, dict):
            at_least = by_class("task.threshold", keys.threshold, target.names, 0.5)
            self._at_least = dict(zip(target.names, at_least, strict=True))
        self.aim = Aim(keys.threshold_beta, keys.threshold_precision) if keys.threshold == AUTO else None
        if self._at_least or self.aim is not None:
            # Thresholds by label cannot be the major metric.
            self.metrics: tuple[str, ...] = tuple(name for name in self.metrics if name != SETTING)

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        return bernoulli_divergence(first["logits"], second["logits"])

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        probs_BC = to_host(each_probability(outputs["logits"].float().cpu()))
        return [{"probabilities": dict(zip(self.known.names, probs, strict=True))} for probs in probs_BC.tolist()]

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        names = self.known.names
        # On the host and in float64, so that the loss of an example does not depend on the device's kernels or on the
        # batch.
        logits_BC, is_label_BC = outputs["logits"].float().cpu(), batch.targets["labels"]
        loss_B = F.binary_cross_entropy_with_logits(logits_BC.double(), is_label_BC.double(), reduction="none").mean(1)
        return [
            {
                "label": [names[i] for i in np.flatnonzero(is_label_BC[row].numpy())],
                **predicted,
                "loss": float(loss_B[row]),
            }
            for row, predicted in enumerate(self.predictions(batch, model, outputs))
        ]

    def scorer(self, decided: Mapping[str, float]) -> LabelSetScorer:
        if self.aim is not None:
            return LabelSetScorer(self.known.names, AUTO, aim=self.aim, given=of_classes(decided, self.known.names))
        # Given thresholds by label are never decided by a set.
        given = self.threshold if self._at_least else decided.get("threshold", self.threshold)
        return LabelSetScorer(self.known.names, given)

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        """Add the prediction at the set's threshold."""
        probabilities = record["probabilities"]
        assert isinstance(probabilities, dict), "a result of `predictions`"
        predicted = self.reaching(probabilities, metrics)
        known = {"label": record["label"]} if "label" in record else {}
        return {**known, "prediction": predicted, **record}

    def reaching(self, probabilities: Mapping[str, float], metrics: Mapping[str, float]) -> list[str]:
        """Return the labels whose probability reaches the threshold, which `metrics` has unless it is given."""
        # In float32, as the scorer compares them; otherwise a probability equal to the threshold could be on the other
        # side.
        if self.aim is not None:
            at_least = {name: metrics[f"{SETTING}/{name}"] for name in self.known.names}
        else:
            at_least = self._at_least or dict.fromkeys(self.known.names, metrics[SETTING])
        return [name for name, p in probabilities.items() if np.float32(p) >= np.float32(at_least[name])]
