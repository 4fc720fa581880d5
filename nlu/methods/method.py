"""The contract of methods, and functions that they share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.opening import Store
from nlu.display.progress_bars import Progress
from nlu.models.layers.dropout import active
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Task

Autocast = Callable[[], AbstractContextManager[object]]
"""the context in which forward passes run, for the run's precision"""


Scale = Mapping[str, float | Tensor]
"""the factor of each term; a tensor on the device if the precision scales the loss"""


@dataclass(frozen=True)
class Context:
    """What a method can use besides the model to build its own parts."""

    task: Task
    store: Store
    """the sets of the run, its labels and its tokenizer"""
    seed: int
    device: torch.device
    """the device of the model; `prepare` must move a teacher there"""
    progress: Progress
    """shows work that takes long"""


class Method(Protocol):
    """Runs the forward and the backward pass of a micro-batch."""

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        """Build the method's own parts. Called once, before the first step.

        The model has the weights that the run starts from, also in a continued run, which loads its state afterwards.
        torch's generator is seeded with the run's seed, so that all ranks build the same parts.

        The returned module is trained with the model: the optimizer updates its parameters, `last` holds its
        parameters and buffers, and a continued run loads them. It is not part of the model: best checkpoints, exports
        and predictions do not contain it. It is moved to the device in place. All other attributes of the method, such
        as a frozen teacher, are neither trained nor saved, and must be built again by this call.
        """

    def weights(self, task: Task) -> dict[str, float]:
        """Return the weight of each term's mean in the loss, by name and in order.

        The terms of the task have the task's weights, which the method may scale. The result must be the same on every
        rank and at every step.
        """

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        """Return the number of rows of each term's sum. Called before the forward pass; the batch is on the host."""

    def backward(
        self, task: Task, model: TaskModel, batch: Batch, scale: Scale, autocast: Autocast
    ) -> dict[str, Tensor]:
        """Add the gradient of `sum of scale[term] * term` to the parameters' gradients; return the sum of each term.

        `scale` is the weight of a term divided by its count in the whole step, so nothing is divided afterwards. A
        scale of 0 must add zeros: a rank without rows runs such a pass to stay in step with the other ranks. The call
        may be repeated for the same rows, so it must change nothing except gradients.
        """


@runtime_checkable
class FitsHead(Protocol):
    """A method that computes the head of the weights that are to be scored, instead of training it by steps.

    Axes: B examples of a batch, N examples of `rows`, D width.
    """

    rows: Examples
    """what the head is fitted to, known after `prepare`"""

    def vectors(self, model: TaskModel, batch: Batch) -> Tensor:
        """Return what the head reads of each example; (B, D)."""

    def fitted(self, vectors_ND: np.ndarray, labels_N: np.ndarray, classes: int) -> dict[str, np.ndarray]:
        """Return the parameters of the head by name. The same rows must give the same bytes."""


@contextmanager
def same_noise(device: torch.device) -> Iterator[None]:
    """Restore all random states after the block, so that the following pass draws the same masks."""
    # Layers draw from the streams on a CPU and from torch's generators elsewhere; modules of other libraries may use
    # torch's generator on a CPU too, so all are restored.
    streams = active()
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
