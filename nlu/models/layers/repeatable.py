"""Attention whose gradient has the same bits each time, in torch's deterministic mode.

While that mode only warns, which is necessary because some operations lack a deterministic kernel, torch uses
attention kernels that sum gradients in any order. So the mode is set to "error" for attention, forward and backward.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def repeatable(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return `compute(*inputs)`; in the deterministic mode, its gradient has the same bits each time.

    Only one backward pass is possible; it releases the graph even if the result is still referenced.
    """
    if not _is_wanted():
        return compute(*inputs)
    return _Repeatable.apply(compute, *inputs)


def repeatable_attention() -> AbstractContextManager[object]:
    """Return a context in which calls of torch's attention by other libraries, such as transformers, are repeatable."""
    return _AttentionMode() if _is_wanted() else nullcontext()


def _is_wanted() -> bool:
    return torch.is_grad_enabled() and bool(torch.get_deterministic_debug_mode())


class _AttentionMode(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Tensor:
        named = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **named)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        # Arguments by name, because tensors among them must be passed to `repeatable` one by one for their gradients.
        named |= dict(zip(names, args, strict=False))
        tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
        return repeatable(lambda *given: func(**named | dict(zip(tensors, given, strict=True))), *tensors.values())


class _Repeatable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        # A separate graph inside forward, so that both passes run in strict mode; autograd would otherwise run
        # backward after the block has ended.
        detached = [input.detach().requires_grad_(input.requires_grad) for input in inputs]
        with torch.enable_grad(), strictly():
            output = compute(*detached)
        ctx.held = detached, output
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.held is None:
            raise RuntimeError("attention can run backward only once in the deterministic mode")
        # The node exists as long as the loss is referenced; the tensors must be released earlier.
        (inputs, output), ctx.held = ctx.held, None
        wanted = [input for input in inputs if input.requires_grad]
        with strictly():
            found = iter(torch.autograd.grad(output, wanted, gradients[0]))
        return None, *(next(found) if input.requires_grad else None for input in inputs)


@contextmanager
def strictly() -> Iterator[None]:
    """Refuse operations without a deterministic kernel in the block; attention then uses one that has it."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
