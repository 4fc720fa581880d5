"""Number formats: the contract of the group `precision`, and fp32 and bf16, which need no loss scale.

Weights, gradients and the optimizer's state stay fp32.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

_WITHOUT_BF16 = ("NO AVX", "AVX2")
"""What torch calls the instruction sets of x86 for which it has no kernels of bf16 products."""


class NumberFormat(Protocol):
    """A choice of the group `precision`; its constructor takes its options by keyword.

    A format with few exponents multiplies the loss by a scale, so that small gradients do not vanish, and skips the
    update where they overflow. Everything of that stays on the device: the host hears of a step one step later there,
    and must not wait for it.
    """

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which a forward pass runs, in training and in scoring."""

    def warning(self, device: torch.device) -> str | None:
        """Return what to say before the first step where the device is slow in this format, or None."""

    def loss_scale(self, device: torch.device) -> Tensor | None:
        """Return what the loss of the next step is multiplied by, float32 of no axes on the device; None = nothing.

        Gradients are divided by it before they are clipped. A format has one at every step or at none.
        """

    def update(self, is_finite: Tensor) -> None:
        """Called once a step, on all ranks with the same answer: whether loss and gradient were finite. It decides the
        next scale. Not called without a scale."""

    def may_skip(self, loss_scale: Any) -> Any:
        """Whether an update that overflowed at this scale is skipped; otherwise the run ends. Takes a number, or a
        tensor on the device, and answers with the same: `loss_scale > self.least` will do."""

    def state(self) -> dict[str, float]:
        """Return what `last` holds of it: scale, steps since the last overflow, ... ; may wait for the device."""

    def load_state(self, state: Mapping[str, float]) -> None:
        """Continue from what `state` gave."""


class Precision:
    """fp32 throughout, or matrix products in bf16 by autocast."""

    def __init__(self, *, dtype: Literal["float32", "bfloat16"] = "float32"):
        """`dtype` of matrix products in forward and backward."""
        self.dtype = dtype

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which a forward pass runs."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    def warning(self, device: torch.device) -> str | None:
        """Return a warning where the device has no bf16 products, so that they take far longer than in fp32.

        On two cores that have AVX2 but no more, a step of SimBERT-tiny then takes 17 times as long as in fp32.
        """
        has_products = device.type != "cpu" or torch.backends.cpu.get_cpu_capability() not in _WITHOUT_BF16
        if self.dtype == "float32" or has_products:
            return None
        return "this CPU has no bf16 matrix products and does them many times slower than fp32; choose precision=fp32"

    def loss_scale(self, device: torch.device) -> Tensor | None:
        return None

    def update(self, is_finite: Tensor) -> None:
        """Nothing depends on it."""

    def may_skip(self, loss_scale: Any) -> Any:
        return False

    def state(self) -> dict[str, float]:
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """There is none."""
