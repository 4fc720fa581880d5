"""Linear layers with int8 weights and activations, on a CPU, with the same result for any batch.

The weights of an output share a scale, and the activations of a row share one: x is about s q with a whole q. So
x W' + b is about s t (q V') + b with the whole weights V and the scales t of the outputs (dynamic quantization by rows
and channels, as in Dettmers et al. 2022, https://arxiv.org/abs/2208.07339, section 2.1, without its outliers in fp16).

q V' is an exact sum of integers, and the scale of a row comes from this row only. So the result for a row has the same
bits in any batch.

Axes: R rows, I input features, O output features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nlu.models.layers.exact_linear import up_to_compiled

# Private parts of torch, which are there in 2.13; a torch that lacks them is refused.
_prepack: Any = getattr(torch.ops.onednn, "qlinear_prepack", None)
_multiply: Any = getattr(torch.ops.onednn, "qlinear_pointwise", None)

LARGEST = 127
"""the largest whole number of a weight or of an activation around 0; the smallest is its negative"""
MIDDLE = 128
"""the byte of an activation of 0; if the least possible activation is known, that has the byte 0"""
STEPS = 255
"""the steps between the least possible activation and the largest one of a row"""
TINY = 1e-30
"""the least span of a row, so that a row of zeros has a finite scale"""


def multiplies_integers() -> bool:
    """Return whether torch has matrix products of integers."""
    return _prepack is not None and _multiply is not None and torch.backends.mkldnn.is_available()


class QuantizedLinear(nn.Module):
    """A linear layer of fixed weights; it keeps a byte for each, and its bias and scales in fp32."""

    def __init__(self, linear: nn.Module, *, lowest: float | None = None, dtype: torch.dtype = torch.float32):
        """Take over weight and bias. `lowest`: no input is below it, so that the whole numbers cover only what can
        occur; None = inputs on both sides of 0. `dtype` of the result."""
        super().__init__()
        assert isinstance(linear, nn.Linear)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.lowest, self._dtype = lowest, dtype
        weight_OI = linear.weight.detach().float()
        scale_O = weight_OI.abs().amax(1).clamp_(min=TINY) / LARGEST
        whole_OI = (weight_OI / scale_O[:, None]).round_().to(torch.int8)
        bias_O = linear.bias.detach().float()
        if lowest is not None:
            # Rows are counted from `lowest` on: x W' = (x - lowest) W' + lowest (sum of W').
            bias_O = bias_O + lowest * scale_O * whole_OI.sum(1)
        self._scale_O, self._bias_O = scale_O, bias_O
        # The span of a row stands for its scale.
        self._product_scale_O = scale_O / (LARGEST if lowest is None else STEPS)
        self._zero_O = torch.zeros(self.out_features, dtype=torch.int64)
        self._packed = {(0, self.out_features): _in_blocks(whole_OI)}

    @property
    def weight_OI(self) -> Tensor:
        """The weight that it computes with, (O, I), float32."""
        return self._whole_OI().float() * self._scale_O[:, None]

    def integers(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the whole weights, (O, I) int8, the scale of a product for an input with a span of 1, (O), and the
        bias, (O), which counts from `lowest`."""
        return self._whole_OI(), self._product_scale_O, self._bias_O

    def _whole_OI(self) -> Tensor:
        return self._packed[0, self.out_features].to_dense().t()

    def forward(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        """Return (R, O) for (R, I), or only the output features `outputs`.

        Its gradient for the input is that of a linear layer with the same weight.
        """
        if not torch.is_grad_enabled():
            return self.product(input, outputs)
        result: Tensor = _Product.apply(input, self, outputs)
        return result

    def product(self, input: Tensor, outputs: slice | None) -> Tensor:
        """Return `forward` without a gradient."""
        start, stop, _ = (outputs or slice(None)).indices(self.out_features)
        if (start, stop) not in self._packed:
            self._packed[start, stop] = _in_blocks(self._whole_OI()[start:stop])
        some = slice(start, stop)
        bytes_RI, span_R1 = self._whole(input.float())
        zero = MIDDLE if self.lowest is None else 0
        packed = self._packed[start, stop]
        # scale (bytes - zero) V': an exact sum of integers, then one rounding. Rows of int8 have no fast kernel.
        scale_O, zero_O = self._product_scale_O[some], self._zero_O[some]
        product_RO: Tensor = _multiply(
            bytes_RI, 1.0, zero, packed, scale_O, zero_O, None, 1.0, 0, torch.float32, "none", [], ""
        )
        result_RO = product_RO[: len(input)]
        # In place, since new memory takes longer than the arithmetic.
        torch.addcmul(self._bias_O[some], result_RO, span_R1, out=result_RO)
        return result_RO.to(self._dtype)

    def _whole(self, input_RI: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows in bytes, with further rows of any content, and the span of each row, (R, 1).

        A span is LARGEST steps, or STEPS if the least possible activation is known.
        """
        if self.lowest is None:
            steps_RI = input_RI.abs()
            span_R1 = steps_RI.amax(1, keepdim=True).clamp_(min=TINY)
            torch.mul(input_RI, LARGEST / span_R1, out=steps_RI)
        else:
            span_R1 = (input_RI.amax(1, keepdim=True) - self.lowest).clamp_(min=TINY)
            per_step_R1 = STEPS / span_R1
            first_R1 = per_step_R1 * -self.lowest - MIDDLE
            steps_RI = torch.addcmul(first_R1, input_RI, per_step_R1)
        rows = len(input_RI)
        # The library compiles its kernel for each new number of rows. Rows do not influence each other, so those that
        # are added need no content.
        whole_RI = torch.empty((rows + up_to_compiled(rows), self.in_features), dtype=torch.int8)
        # torch converts to int8 several times as fast as to uint8.
        whole_RI[:rows].copy_(steps_RI.round_())
        # Adds MIDDLE.
        return whole_RI.view(torch.uint8).bitwise_xor_(MIDDLE), span_R1


def _in_blocks(whole_OI: Tensor) -> Tensor:
    """Return an int8 weight in the memory layout of the library's kernels."""
    packed: Tensor = _prepack(whole_OI.contiguous(), None)
    return packed


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: QuantizedLinear, outputs: slice | None) -> Tensor:
        ctx.layer, ctx.outputs, ctx.dtype = layer, outputs or slice(None), input.dtype
        return layer.product(input, outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (gradients[0].float() @ ctx.layer.weight_OI[ctx.outputs]).to(ctx.dtype), None, None
