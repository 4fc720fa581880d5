"""AdamW with torch's fused kernel, which divides gradients and skips an update without waiting for the host."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from nlu.optim.half import has_half, step_in_parts

TAKES_DIVISOR = "grad_scale" in inspect.signature(adam).parameters
"""whether torch's kernel can divide gradients during the update, as its gradient scaler requires"""


class FusedAdamW(torch.optim.AdamW):
    """torch's AdamW with the fused kernel and without support for torch.compile.

    That support imports the compiler with the first optimizer, which delays each start of a run by over a second.
    """

    grad_scale: Tensor
    found_inf: Tensor | None
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


def update(optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: Tensor, failed: Tensor | None) -> None:
    """Divide the gradients and run the optimizer's step, unless `failed`, a number on the device, is not 0.

    The fused kernel divides during the update, which saves a pass over all gradients, and reads `failed` without a
    synchronization with the host. float16 parameters are divided and updated in float32.
    """
    if has_half(gradients):
        step_in_parts(optimizer, lambda of_part: _update(optimizer, of_part, divisor, failed))
    else:
        _update(optimizer, gradients, divisor, failed)


def update_in_place(
    group: Mapping[str, Any],
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    divisor: Tensor,
) -> None:
    """Run AdamW on these numbers, with the settings of a group of `FusedAdamW`.

    `first` and `second` are the moments. `step`, the number of updates before this one, becomes one larger; the
    gradient is divided in place, unless the divisor is 1 on the host.
    """
    scale: dict[str, Any] = {"grad_scale": divisor} if TAKES_DIVISOR and not _is_one(divisor) else {}
    if not TAKES_DIVISOR:
        gradient.div_(divisor)
    beta1, beta2 = group["betas"]
    adam(
        [weights], [gradient], [first], [second], [], [step], fused=True, amsgrad=False, beta1=beta1, beta2=beta2,
        lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        decoupled_weight_decay=True, **scale,
    )  # fmt: skip


def decay_in_place(group: Mapping[str, Any], weights: Tensor) -> None:
    """Run AdamW, as `update_in_place`, on numbers whose gradient and moments are 0 and stay so."""
    if group["weight_decay"]:
        weights.mul_(1 - group["lr"] * group["weight_decay"])


def _update(optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: Tensor, failed: Tensor | None) -> None:
    if TAKES_DIVISOR and isinstance(optimizer, FusedAdamW):
        # torch's gradient scaler hands these attributes to the kernel in the same way; the kernel divides by
        # `grad_scale` and skips the update where `found_inf` is not 0.
        optimizer.grad_scale, optimizer.found_inf = divisor, failed
    else:
        torch._foreach_div_(gradients, divisor)
        if failed is not None and failed.item():
            return
    optimizer.step()


def _is_one(divisor: Tensor) -> bool:
    """Return whether dividing by it on the host changes no bit. On an accelerator the host does not wait for it."""
    return divisor.device.type == "cpu" and divisor.item() == 1
