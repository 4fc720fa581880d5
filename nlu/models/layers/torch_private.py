"""All uses of private parts of torch, each with a fallback.

They were read in torch READ_IN. If another version lacks a part, results are the same but slower; a test names it.

Axes: R rows, I input features, O output features.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

READ_IN = "2.13"


def _operator(name: str) -> Callable[..., Any] | None:
    """Return an operator of the CPU library, or None."""
    return getattr(torch.ops.mkldnn, name, None)


_softmax_backward: Callable[..., Tensor] | None = getattr(torch, "_softmax_backward_data", None)
_storage_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_supports_bf16, _reorder, _linear = map(
    _operator, ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
)


def absent() -> list[str]:
    """Return the names of the parts that the installed torch lacks."""
    parts = {
        "_softmax_backward_data": _softmax_backward, "_storage_Use_Count": _storage_use_count,
        "_is_mkldnn_bf16_supported": _supports_bf16, "_reorder_linear_weight": _reorder, "_linear_pointwise": _linear,
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
