"""The contract of optimizers, and the parameters that they get."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from nlu.models.task_model import TaskModel

OF_METHOD = "method."
"""prefix of the names of a method's parameters"""


class Optimizer(Protocol):
    """A choice of the group `optimizer`; its constructor takes its options by keyword."""

    def build(self, model: TaskModel, own: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters of a model and of `own`, the module that the method trains, if any.

        Parameters that are not trained get `requires_grad_(False)` here. Each group has its peak rate as `lr`, which
        the schedule multiplies at every step. The optimizer's state must be tensors and numbers by parameter, which
        `last` holds as `FIELD:PARAMETER`. A step must depend only on weights, gradients and this state, so that a
        continued run is identical. Parameters without a gradient must not change.
        """


def named_parameters(model: nn.Module, own: nn.Module | None) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model, then those of its method, each with its name in `last`."""
    yield from model.named_parameters()
    if own is not None:
        for name, parameter in own.named_parameters():
            yield OF_METHOD + name, parameter
