"""All uses of private parts of torch, each with a fallback; those for int8 are in `nlu.inference.int8.linear`.

They were read in torch READ_IN. If another version lacks a part, results are the same but slower; a test names it.

Axes: R rows, I input features, O output features; T tokens, Q of them with queries, H heads, E width of a head.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as of_modules

READ_IN = "2.13"


def _operator(name: str, space: Any = torch.ops.mkldnn) -> Callable[..., Any] | None:
    """Return an operator of the CPU library, or None."""
    return getattr(space, name, None)


_softmax_backward: Callable[..., Tensor] | None = getattr(torch, "_softmax_backward_data", None)
_storage_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_supports_bf16, _reorder, _linear = map(
    _operator, ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
)
_flash_attention = _operator("_flash_attention_forward", torch.ops.aten)


def absent() -> list[str]:
    """Return the names of the parts that the installed torch lacks."""
    parts = {
        "_softmax_backward_data": _softmax_backward, "_storage_Use_Count": _storage_use_count,
        "_flash_attention_forward": _flash_attention, "_is_mkldnn_bf16_supported": _supports_bf16,
        "_reorder_linear_weight": _reorder, "_linear_pointwise": _linear,
    }  # fmt: skip
    return [name for name, part in parts.items() if part is None]


def softmax_gradient(gradient: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of a softmax over the last axis with the result `weights`; float32.

    torch's kernel passes over memory once; autograd would use it too, but keeps more tensors.
    """
    if _softmax_backward is not None:
        return _softmax_backward(gradient, weights, -1, torch.float32)
    weighed = gradient * weights
    return weighed - weights * weighed.sum(-1, keepdim=True)


def packed_attention(
    query_QHE: Tensor,
    key_THE: Tensor,
    value_THE: Tensor,
    query_bounds: Tensor,
    bounds: Tensor,
    longest_query: int,
    longest: int,
    *,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """Return attention over packed sequences of half precision on a CUDA device, with dropout; (Q, H, E).

    The public torch.nn.attention.varlen.varlen_attn is this kernel without dropout. `bounds`: the start of each
    sequence, and the end of the last one, int32. Raises NotImplementedError or RuntimeError where there is no kernel.
    """
    if _flash_attention is None:
        raise NotImplementedError(f"torch {torch.__version__} has no attention over packed rows with dropout")
    mixed_QHE: Tensor = _flash_attention(
        query_QHE,
        key_THE,
        value_THE,
        query_bounds,
        bounds,
        longest_query,
        longest,
        dropout_p,
        False,
        False,
        scale=scale,
    )[0]
    return mixed_QHE


def storage_use_count(tensor: Tensor) -> int | None:
    """Return the number of references to this tensor's memory, including itself and this call; None if unknown."""
    if _storage_use_count is None:
        return None
    return _storage_use_count(tensor.untyped_storage()._cdata)


def version_of(tensor: Tensor) -> int | None:
    """Return a number that changes with each in-place write to the tensor; None if unknown."""
    return getattr(tensor, "_version", None)


def reads_blocks(dtype: torch.dtype) -> bool:
    """Return whether weights of this precision can have the memory layout of the library's kernels for this CPU."""
    if _supports_bf16 is None or _reorder is None or _linear is None:
        return False
    return dtype == torch.bfloat16 and torch.backends.mkldnn.is_available() and bool(_supports_bf16())


def in_blocks(weight_OI: Tensor) -> Tensor:
    """Return a weight in that layout. Requires `reads_blocks`."""
    assert _reorder is not None, "reads_blocks was asked"
    blocks: Tensor = _reorder(weight_OI, None)
    return blocks


def product_of_blocks(rows_RI: Tensor, blocks: Tensor, bias_O: Tensor) -> Tensor:
    """Return rows W' + b with a weight from `in_blocks`; (R, O)."""
    assert _linear is not None, "reads_blocks was asked"
    product_RO: Tensor = _linear(rows_RI, blocks, bias_O, "none", [], "")
    return product_RO


def linear_product(rows_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Return rows W' + b; (R, O).

    The kernel for a CPU has the same bits as F.linear, which copies the bias to each row first.
    """
    if rows_RI.device.type == "cpu" and _linear is not None and reads_blocks(weight_OI.dtype):
        return product_of_blocks(rows_RI, weight_OI, bias_O)
    return F.linear(rows_RI, weight_OI, bias_O)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)


def is_plain(modules: Iterable[nn.Module]) -> bool:
    """Return whether calling modules runs nothing but the `forward` of their classes; False if unknown."""
    if any(getattr(of_modules, name, True) for name in _GLOBAL_HOOKS):
        return False
    return not any("forward" in each.__dict__ or any(getattr(each, name, True) for name in _HOOKS) for each in modules)
