"""Predict a number for a text or a pair of texts. Axes: B examples."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Number
from nlu.metrics.numbers import NumberScorer
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, RowsOfLogits, to_host


@takes(schemas.Regress)
class Regress(RowsOfLogits):
    """Predict a number. It is standardized for training; predictions and scores are in the original unit."""

    known: Number

    def rows(self, batch: Batch) -> int:
        return len(batch)

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        return {"labels": self.loss_of_rows(batch, outputs["logits"], batch.targets["numbers"])}

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        """Return half the squared difference, the divergence of two normal distributions with standard deviation 1."""
        return 0.5 * (first["logits"] - second["logits"]).square().sum()

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        return [{"prediction": number} for number in self.known.unscaled(_scaled(outputs)).tolist()]

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        # In standardized units, as in training, so that losses of different data sets have the same scale.
        error_B = _scaled(outputs) - batch.targets["numbers"].numpy()
        label_B = self.known.values(part.stored, part.rows_N[batch.examples_B])
        return [
            {"label": float(label), **predicted, "loss": float(error**2)}
            for label, predicted, error in zip(label_B, self.predictions(batch, model, outputs), error_B, strict=True)
        ]

    def scorer(self, decided: Mapping[str, float]) -> NumberScorer:
        return NumberScorer([])


def _scaled(outputs: Outputs) -> np.ndarray:
    """Return the standardized predictions; (B,), float64."""
    return to_host(outputs["logits"][:, 0]).astype(np.float64)
