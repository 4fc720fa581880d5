"""What an optimizer of the group `optimizer` is, and which parameters it gets."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from nlu.models.task_model import TaskModel

OF_METHOD = "method."
"""before the names of parameters that a method brought"""


class Optimizer(Protocol):
    """A choice of the group `optimizer`; its constructor takes its options by keyword."""

    def build(self, model: TaskModel, own: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters of a model, and of what its method trains beside it, if anything.

        A parameter that is not to be trained gets `requires_grad_(False)` here. Each group of the optimizer has its
        peak rate as `lr`, which the schedule multiplies at every step. The optimizer's state must be tensors and
        numbers by parameter, which `last` holds as `FIELD:PARAMETER`; its step must depend only on weights, gradients
        and that state, so that a continued run does the same. Parameters without a gradient must not change.
        """


def named_parameters(model: nn.Module, own: nn.Module | None) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model, then those that a method brought, each with its name in `last`."""
    yield from model.named_parameters()
    if own is not None:
        for name, parameter in own.named_parameters():
            yield OF_METHOD + name, parameter
