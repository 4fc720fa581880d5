"""What a method is, and what all of them need."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.data.opening import Store
from nlu.models.layers import noise
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

Autocast = Callable[[], AbstractContextManager[None]]
"""the context in which forward passes run, for the run's precision"""


Scale = Mapping[str, float | Tensor]
"""what each term is multiplied by; a number on the device where the precision scales the loss"""


@dataclass(frozen=True)
class Context:
    """What a method may build its own parts from, beside the model."""

    task: Task
    store: Store
    """the sets of the run, its labels and its tokenizer"""
    seed: int
    device: torch.device
    """where the model will be; a teacher must go there by itself"""


class Method(Protocol):
    """Owns forward and backward of a micro-batch."""

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        """Build what the method needs of its own. Called once, before the first step.

        The model then has the weights that the run starts from, also when the run continues: the saved state is loaded
        afterwards. torch's generator is seeded with the run's seed, so that all ranks build the same.

        The module that is returned is trained with the model: the optimizer updates its parameters, `last` holds its
        parameters and buffers, and a continued run loads them. It is no part of the model: best checkpoints, exports
        and predictions do not contain it. It is moved to the device in place. Whatever else the method keeps as
        attributes, such as a frozen teacher, is neither trained nor saved, and must be built again by this call.
        """

    def weights(self, task: Task) -> dict[str, float]:
        """Return the names of all terms, in their order, and what multiplies the mean of each in the loss.

        The terms of the task have the task's weights, times what the method says. The same on every rank and at every
        step.
        """

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        """Return how many rows each term sums over, known before the forward pass; the batch is on the host."""

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Scale, autocast: Autocast
    ) -> dict[str, Tensor]:
        """Add the gradient of `sum of scale[term] * term` to the parameters' and return the sums of the terms.

        `scale` is the weight of a term over its count in the whole step, so nothing is divided afterwards. A scale of 0
        must add zeros: a rank without rows runs a pass in that way, to keep up with the others.
        The call may be repeated for the same rows, so it must change nothing but gradients.
        """


def forward_terms(
    task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the task's terms after one forward pass."""
    with autocast():
        outputs = task.forward(model, batch, x_TD)
    return task.terms(model, batch, outputs)


def weighted(terms: Mapping[str, Tensor], scale: Scale) -> Tensor:
    """Return the sum of the terms by their scale."""
    return torch.stack([value * scale[name] for name, value in terms.items()]).sum()


def detached(terms: Mapping[str, Tensor], factor: float = 1.0) -> dict[str, Tensor]:
    """Return the terms without their graph, times a factor."""
    return {name: value.detach() * factor for name, value in terms.items()}


@contextmanager
def same_noise(device: torch.device) -> Iterator[None]:
    """Leave all random numbers as they were before the block, so that what follows draws the masks that it drew."""
    streams = noise.active()
    position = streams.position() if streams is not None else None
    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        if streams is not None:
            streams.go_to(position)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
