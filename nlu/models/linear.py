"""A linear layer whose result for a row does not depend on how many other rows are computed with it.

Axes: R rows, I input features, O output features.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_ROWS = 16
MIN_ROWS_PER_THREAD = 4


class Linear(nn.Linear):
    """As nn.Linear on (rows, features), with at least `min_rows()` rows computed.

    Under autocast it computes with copies of weight and bias that are kept in the lower precision until an update
    changes the weight, so neither micro-batches nor evaluation batches cast them again; gradients reach the fp32
    weight itself. The values are those of autocast.
    """

    _kept: tuple[tuple[int, int, torch.dtype], Tensor, Tensor] | None = None

    def forward(self, input: Tensor, outputs: slice = slice(None)) -> Tensor:
        """Return (R, O), or only the output features that `outputs` names."""
        weight, bias = self.weight[outputs], self.bias[outputs]
        if not torch.is_autocast_enabled(input.device.type):
            return _with_min_rows(input, lambda rows: F.linear(rows, weight, bias))
        low_weight, low_bias = self._low_precision(torch.get_autocast_dtype(input.device.type))
        return _with_min_rows(
            input, lambda rows: _LowLinear.apply(rows, weight, bias, low_weight[outputs], low_bias[outputs])
        )

    def _low_precision(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        state = self.weight._version, self.weight.data_ptr(), dtype
        if self._kept is None or self._kept[0] != state:
            # A copy made while scoring must also serve training.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, self.weight.to(dtype), self.bias.to(dtype)
        return self._kept[1], self._kept[2]


class _LowLinear(torch.autograd.Function):
    """x W' + b in lower precision, with gradients for the fp32 originals of W and b."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, low_weight: Tensor, low_bias: Tensor) -> Tensor:
        low_input = input.to(low_weight.dtype)
        ctx.save_for_backward(low_input if weight.requires_grad else None, low_weight)
        ctx.input_dtype = input.dtype
        return F.linear(low_input, low_weight, low_bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_RO,) = gradients
        low_input, low_weight = ctx.saved_tensors
        to_input, to_weight, to_bias = ctx.needs_input_grad[:3]
        return (
            (gradient_RO @ low_weight).to(ctx.input_dtype) if to_input else None,
            (gradient_RO.t() @ low_input).float() if to_weight else None,
            gradient_RO.sum(0).float() if to_bias else None,
            None,
            None,
        )


def min_rows() -> int:
    """Return the number of rows from which on the order of summation no longer depends on it.

    Matrix libraries share rows out among threads, and a thread with three rows or fewer runs a kernel with another
    order of summation; a lone example would then score differently, in the last bits, from the same example among
    others.
    """
    return max(MIN_ROWS, MIN_ROWS_PER_THREAD * torch.get_num_threads())


def _with_min_rows(input: Tensor, compute: Any) -> Tensor:
    """Compute rows, padded with zero rows to `min_rows()` where there are fewer."""
    rows, wanted = input.shape[0], min_rows()
    if rows >= wanted:
        return compute(input)
    padding = input.new_zeros(wanted - rows, *input.shape[1:])
    return compute(torch.cat([input, padding]))[:rows]
