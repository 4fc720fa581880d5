"""Updates of float16 parameters without float32 copies of all of them.

The idea is that of fairseq's MemoryEfficientFP16Optimizer (Ott et al. 2019, https://arxiv.org/abs/1904.01038), which
keeps the weights in float16 only. Here the optimizer sees float32 copies of some parameters at a time, so that any
optimizer computes in float32, and its state is float32.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


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
