"""What a method is, and what all of them need."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from nlu.data.collate import Batch
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

Autocast = Callable[[], AbstractContextManager[None]]
"""the context in which forward passes run, for the run's precision"""


class Method(Protocol):
    """Owns forward and backward of a micro-batch."""

    def terms(self, task: Task) -> list[str]:
        """Return the names of all terms, in their order; the same on every rank."""

    def weight_of(self, term: str) -> float:
        """Return what multiplies the mean of a term in the loss."""

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        """Return how many rows each term sums over, known before the forward pass; the batch is on the host."""

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Mapping[str, float], autocast: Autocast
    ) -> dict[str, Tensor]:
        """Add the gradient of `sum of scale[term] * term` to the parameters' and return the sums of the terms.

        `scale` is the weight of a term over its count in the whole step, so nothing is divided afterwards.
        """


def forward_terms(
    task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the task's terms after one forward pass."""
    with autocast():
        outputs = task.forward(model, batch, x_TD)
    return task.terms(model, batch, outputs)


def weighted(terms: Mapping[str, Tensor], scale: Mapping[str, float]) -> Tensor:
    """Return the sum of the terms by their scale."""
    return torch.stack([value * scale[name] for name, value in terms.items()]).sum()


def detached(terms: Mapping[str, Tensor], factor: float = 1.0) -> dict[str, Tensor]:
    """Return the terms without their graph, times a factor."""
    return {name: value.detach() * factor for name, value in terms.items()}


@contextmanager
def same_noise(device: torch.device) -> Iterator[None]:
    """Leave the generators as they were found, so that what follows draws the masks that the block drew."""
    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
