"""One forward and one backward pass: plain training, and the base of methods that only change the loss."""

from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.methods.method import Autocast, Context, Scale, detached, forward_terms, weighted
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task


class Plain:
    """The gradient of the task's loss.

    A method that changes the loss but not the computation of its gradient overrides `weights`, `counts` and `terms`.
    Adversarial methods can then perturb its loss too (`method.of`).
    """

    def __init__(self) -> None:
        """No options."""

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
