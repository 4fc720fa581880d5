"""R-Drop: two passes with different dropout masks, and a penalty for the divergence of their predictions.

Liang et al. 2021 (https://arxiv.org/abs/2106.14448), equations 2-4.
"""

import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.methods import keys as schemas
from nlu.methods.method import Autocast
from nlu.methods.plain import Plain
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

CONSISTENCY = "consistency"


@takes(schemas.RDrop)
class RDrop(Plain):
    """The mean loss of two passes, plus the weighted divergence of their predictions."""

    def __init__(self, keys: schemas.RDrop):
        """The loss is half of the paper's equation 4, so that a step is as large as in plain training: the mean of the
        two losses plus alpha / 2 times half the sum of both KL divergences.
        """
        self.alpha = keys.alpha

    def weights(self, task: Task) -> dict[str, float]:
        return {**task.term_weights, CONSISTENCY: self.alpha / 2}

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        return {**task.counts(batch), CONSISTENCY: task.rows(batch)}

    def terms(
        self, task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
    ) -> dict[str, Tensor]:
        with autocast():
            # The streams of noise continue from the first pass to the second, so the masks differ. In one pass over a
            # doubled batch, both copies of a sequence would have the same stream.
            passes = [task.forward(model, batch, x_TD) for _ in range(2)]
        first, second = (task.terms(model, batch, outputs) for outputs in passes)
        # A mean, so that a step is as large as in plain training, see `__init__`.
        terms = {name: torch.stack([first[name], second[name]]).mean() for name in first}
        terms[CONSISTENCY] = task.divergence(batch, *passes)
        return terms
