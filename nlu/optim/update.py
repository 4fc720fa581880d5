"""What a step does with an optimizer: its rates, the norm of the gradient, the update, and the moving average.

float16 parameters are updated without float32 copies of all of them, an idea of fairseq's MemoryEfficientFP16Optimizer
(Ott et al. 2019, https://arxiv.org/abs/1904.01038), which keeps the weights in float16 only. Here the optimizer sees
float32 copies of some parameters at a time, so that any optimizer computes in float32, and its state is float32.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

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


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Set every group's rate to its base rate times the factor.

    Returns the highest rate, without those that a head or `lr_by_name` sets independently of optimizer.lr.
    """
    for group in optimizer.param_groups:
        # Before the first step, "lr" is the peak rate.
        group["lr"] = group.setdefault("base_lr", group["lr"]) * factor
    groups = [group for group in optimizer.param_groups if not group.get("has_own_lr")] or optimizer.param_groups
    return max(group["lr"] for group in groups)


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients, float32; that of float16 ones is computed without copies of them."""
    if not has_half(gradients):
        return torch.nn.utils.get_total_norm(gradients)
    halves = [gradient for gradient in gradients if gradient.dtype == torch.float16]
    others = [gradient for gradient in gradients if gradient.dtype != torch.float16]
    norms = [*torch._foreach_norm(halves, 2, dtype=torch.float32), *(torch._foreach_norm(others, 2) if others else ())]
    return torch.linalg.vector_norm(torch.stack(norms))


def update(optimizer: torch.optim.Optimizer, gradients: list[Tensor], divisor: Tensor, failed: Tensor | None) -> None:
    """Divide the gradients and run the optimizer's step, unless `failed`, a number on the device, is not 0.

    The fused kernel divides during the update, which saves a pass over all gradients, and reads `failed` without a
    synchronization with the host. float16 parameters are divided and updated in float32.
    """
    if has_half(gradients):
        step_in_parts(optimizer, lambda of_part: _update(optimizer, of_part, divisor, failed))
    else:
        _update(optimizer, gradients, divisor, failed)


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


def has_half(gradients: Iterable[Tensor]) -> bool:
    """Return whether a gradient, and so its parameter, is float16."""
    return any(gradient.dtype == torch.float16 for gradient in gradients)


@torch.no_grad()
def step_in_parts(optimizer: torch.optim.Optimizer, step: Callable[[list[Tensor]], None]) -> None:
    """Call `step` for parts of the parameters, with their gradients, which it may change; the optimizer then has only
    the parameters of this part. float16 parameters and their gradients are replaced by float32 copies, and the results
    are rounded to the nearest float16; float16 gradients are not changed.

    The copies of a part take no more memory than those of the largest parameter. Parameters without a gradient are in
    no part. All parts together are one step, since the update of a parameter depends on no other.
    """
    groups, whole = optimizer.param_groups, [group["params"] for group in optimizer.param_groups]
    gradients = {each: each.grad for parameters in whole for each in parameters if each.grad is not None}
    state = optimizer.state
    try:
        for part in _parts(list(gradients)):
            seen = {parameter: _copied(parameter, gradients[parameter]) for parameter in part}
            for parameter, copy in seen.items():
                _rename(state, parameter, copy)
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = [seen[each] for each in parameters if each in seen]
            # Not every optimizer expects a group without parameters.
            optimizer.param_groups = [group for group in groups if group["params"]]
            step([copy.grad for copy in seen.values() if copy.grad is not None])
            for parameter, copy in seen.items():
                _rename(state, copy, parameter)
                if copy is not parameter:
                    parameter.copy_(copy)
    finally:
        for group, parameters in zip(groups, whole, strict=True):
            group["params"] = parameters
        optimizer.param_groups = groups


def _copied(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Return a float32 copy with its gradient of a float16 parameter, and any other parameter itself."""
    if parameter.dtype != torch.float16:
        return parameter
    copy = parameter.detach().float()
    copy.grad = gradient.float()
    return copy


def _rename(state: dict[Tensor, Any], before: Tensor, after: Tensor) -> None:
    if before is not after and before in state:
        state[after] = state.pop(before)


def _parts(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the float32 parameters, which need no copies, then the others in parts up to the size of the largest."""
    if others := [each for each in parameters if each.dtype != torch.float16]:
        yield others
    halves = [each for each in parameters if each.dtype == torch.float16]
    most = max((each.numel() for each in halves), default=0)
    part: list[Tensor] = []
    for each in halves:
        if part and sum(one.numel() for one in part) + each.numel() > most:
            yield part
            part = []
        part.append(each)
    if part:
        yield part


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
    for shadow, weight in pairs:
        if weight.dtype == torch.float16:
            # Copies of all weights at once would take as much memory as master weights.
            shadow.lerp_(weight.float(), amount)
    if others := [pair for pair in pairs if pair[1].dtype != torch.float16]:
        shadows, weights = map(list, zip(*others, strict=True))
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
