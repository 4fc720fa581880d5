"""One forward and one backward pass: plain training, and the base of methods that only change the loss."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.methods import keys as schemas
from nlu.methods.method import Autocast, Context, Scale
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task


@takes(schemas.Plain)
class Plain:
    """The gradient of the task's loss.

    A method that changes the loss but not the computation of its gradient overrides `weights`, `counts` and `terms`.
    Adversarial methods can then perturb its loss too (`method.of`).
    """

    compiles: bool = True
    """whether its passes may be compiled: it needs outputs and terms, and nothing from inside the model"""

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        return None

    def weights(self, task: Task) -> dict[str, float]:
        return dict(task.term_weights)

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        return task.counts(batch)

    def terms(
        self, task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the sum of each term, with its graph; `x_TD` replaces the word vectors of the batch."""
        return forward_terms(task, model, batch, autocast, x_TD)

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Scale, autocast: Autocast
    ) -> dict[str, Tensor]:
        terms = self.terms(task, model, batch, autocast)
        weighted(terms, scale).backward()
        return detached(terms)


def forward_terms(
    task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the task's terms after one forward pass."""
    with autocast():
        outputs = task.forward(model, batch, x_TD)
    return task.terms(model, batch, outputs)


def weighted(terms: Mapping[str, Tensor], scale: Scale) -> Tensor:
    """Return the sum of the terms, each times its scale."""
    # Stacked, so that the sum is one kernel on an accelerator and its order is that of the terms.
    return torch.stack([value * scale[name] for name, value in terms.items()]).sum()


def detached(terms: Mapping[str, Tensor], factor: float = 1.0) -> dict[str, Tensor]:
    """Return the terms without their graph, times a factor."""
    return {name: value.detach() * factor for name, value in terms.items()}
