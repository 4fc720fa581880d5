"""Number formats of the forward pass; weights, gradients and optimizer stay fp32."""

from contextlib import nullcontext
from typing import Any, Literal

import torch


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
