"""One forward and one backward pass."""

from collections.abc import Mapping

from torch import Tensor

from nlu.data.collate import Batch
from nlu.methods.method import Autocast, detached, forward_terms, weighted
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task


class Plain:
    """The gradient of the task's own loss."""

    def __init__(self) -> None:
        """No options."""

    def terms(self, task: Task) -> list[str]:
        return list(task.term_names)

    def weight_of(self, term: str) -> float:
        return 1.0

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        return task.counts(batch)

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Mapping[str, float], autocast: Autocast
    ) -> dict[str, Tensor]:
        terms = forward_terms(task, model, batch, autocast)
        weighted(terms, scale).backward()
        return detached(terms)
