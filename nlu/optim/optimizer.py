"""The contract of optimizers, and what a step does with one: its rates, the update, and the moving average."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

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


class FusedAdamW(torch.optim.AdamW):
    """torch's AdamW with the fused kernel and without support for torch.compile.

    That support imports the compiler with the first optimizer, which delays each start of a run by over a second.
    """

    grad_scale: Tensor
    found_inf: Tensor | None
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Set every group's rate to its base rate times the factor.

    Returns the highest rate, without those that a head or `lr_by_name` sets independently of optimizer.lr.
    """
    for group in optimizer.param_groups:
        # Before the first step, "lr" is the peak rate.
        group["lr"] = group.setdefault("base_lr", group["lr"]) * factor
    groups = [group for group in optimizer.param_groups if not group.get("has_own_lr")] or optimizer.param_groups
    return max(group["lr"] for group in groups)


def update(optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: Tensor, failed: Tensor | None) -> None:
    """Divide the gradients and run the optimizer's step, unless `failed`, a number on the device, is not 0.

    The fused kernel divides during the update, which saves a pass over all gradients, and reads `failed` without a
    synchronization with the host.
    """
    if isinstance(optimizer, FusedAdamW):
        # torch's gradient scaler hands these attributes to the kernel in the same way; the kernel divides by
        # `grad_scale` and skips the update where `found_inf` is not 0.
        optimizer.grad_scale, optimizer.found_inf = divisor, failed
    else:
        torch._foreach_div_(gradients, divisor)
        if failed is not None and failed.item():
            return
    optimizer.step()


@torch.no_grad()
def follow(average: Mapping[str, Tensor], model: nn.Module, decay: float, number: int, skipped: Tensor | None) -> None:
    """Move the averages towards the weights after step `number`.

    The averages are float32, and of the trained parameters only: frozen ones and buffers are the same in both.
    `skipped`: a number on the device, 1 for a step that has not updated the weights; None: this one has.
    """
    # The decay grows over the first steps; otherwise the average would long consist of the initial weights.
    amount: Tensor | float = 1 - min(decay, (1 + number) / (10 + number))
    amount = amount if skipped is None else amount * (1 - skipped)
    pairs = [(average[name], parameter) for name, parameter in model.named_parameters() if name in average]
    # Where only the module of a method is trained, there are none.
    if pairs:
        shadows, weights = map(list, zip(*pairs, strict=True))
        torch._foreach_lerp_(shadows, weights, [amount] * len(shadows) if isinstance(amount, Tensor) else amount)


@contextmanager
def averaged(model: nn.Module, average: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Give the trained parameters of a model the values of their moving average, if there is one, in the block."""
    own: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if average is not None and name in average:
                # Copied, so that exactly the same weights come back.
                own[name] = parameter.detach().clone()
                parameter.copy_(average[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in own:
                    parameter.copy_(own[name])
