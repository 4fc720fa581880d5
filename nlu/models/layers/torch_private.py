"""The private parts of torch that are used, all of them here, each with a way to do without.

Read in torch READ_IN. Where a part is gone in another version the result is the same, only slower; a test says so.

Axes: R rows, I input features, O output features.
"""

from typing import Any

import torch
from torch import Tensor

READ_IN = "2.13"


def _operator(name: str) -> Any:
    """Return an operator of the library for CPUs, or None; asking for one that is not there raises."""
    return getattr(torch.ops.mkldnn, name, None)


_softmax_backward: Any = getattr(torch, "_softmax_backward_data", None)
_storage_use_count: Any = getattr(torch._C, "_storage_Use_Count", None)
_supports_bf16, _reorder, _linear = map(
    _operator, ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
)


def absent() -> list[str]:
    """Return which of these parts the torch at hand lacks."""
    parts = {
        "_softmax_backward_data": _softmax_backward, "_storage_Use_Count": _storage_use_count,
        "_is_mkldnn_bf16_supported": _supports_bf16, "_reorder_linear_weight": _reorder, "_linear_pointwise": _linear,
    }  # fmt: skip
    return [name for name, part in parts.items() if part is None]


def softmax_gradient(gradient: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient for what a softmax over the last axis turned into `weights`; float32.

    The library's own kernel passes over memory once; autograd would reach it, but keeps more.
    """
    if _softmax_backward is not None:
        return _softmax_backward(gradient, weights, -1, torch.float32)  # type: ignore[no-any-return]
    weighed = gradient * weights
    return weighed - weights * weighed.sum(-1, keepdim=True)


def storage_use_count(tensor: Tensor) -> int | None:
    """Return how many tensors stand on this tensor's memory, itself and this call included; None where unknown."""
    if _storage_use_count is None:
        return None
    return _storage_use_count(tensor.untyped_storage()._cdata)  # type: ignore[no-any-return]


def version_of(tensor: Tensor) -> int | None:
    """Return a number that changes whenever the tensor is written to in place; None where unknown."""
    return getattr(tensor, "_version", None)


def reads_blocks(dtype: torch.dtype) -> bool:
    """Return whether weights of this precision can be laid out as the library's kernels for this CPU read them."""
    has_operators = None not in (_supports_bf16, _reorder, _linear)
    return dtype == torch.bfloat16 and has_operators and torch.backends.mkldnn.is_available() and _supports_bf16()


def in_blocks(weight_OI: Tensor) -> Tensor:
    """Return a weight laid out so; only where `reads_blocks`."""
    return _reorder(weight_OI, None)  # type: ignore[no-any-return]


def product_of_blocks(rows_RI: Tensor, blocks: Tensor, bias_O: Tensor) -> Tensor:
    """Return rows W' + b with a weight from `in_blocks`; (R, O)."""
    return _linear(rows_RI, blocks, bias_O, "none", [], "")  # type: ignore[no-any-return]
