"""Number formats of the forward pass; weights, gradients and optimizer stay fp32."""

from contextlib import nullcontext
from typing import Any, Literal

import torch

_WITHOUT_BF16 = ("NO AVX", "AVX2")
"""What torch calls the instruction sets of x86 for which it has no kernels of bf16 products."""


class Precision:
    """fp32 throughout, or matrix products in bf16 by autocast."""

    def __init__(self, *, dtype: Literal["float32", "bfloat16"] = "float32"):
        """`dtype` of matrix products in forward and backward."""
        self.dtype = dtype

    def autocast(self, device: torch.device) -> Any:
        """Return the context in which a forward pass runs."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    def warning(self, device: torch.device) -> str | None:
        """Return what to say where the device has no such products, so that they take far longer than in fp32.

        On two cores with AVX2 alone a step of SimBERT-tiny then takes 17 times as long as in fp32.
        """
        has_products = device.type != "cpu" or torch.backends.cpu.get_cpu_capability() not in _WITHOUT_BF16
        if self.dtype == "float32" or has_products:
            return None
        return "this CPU has no bf16 matrix products and does them many times slower than fp32; choose precision=fp32"
