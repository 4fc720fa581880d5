"""Dropout whose masks cost little on a CPU.

Srivastava et al. 2014 (https://jmlr.org/papers/v15/srivastava14a.html). torch draws one number of a serial generator
for each element there, which takes longer than the normalisation after it; here 16 bits of a fast generator decide.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16
"""The probability is rounded to a multiple of 1 / STEPS."""


class Dropout(nn.Module):
    """Zero elements with `probability` while training and scale the others by 1 / (1 - probability)."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.probability) if self.training else input

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


def dropout(input: Tensor, probability: float) -> Tensor:
    """Return the input with elements zeroed at random; a function of torch's generator alone."""
    if not probability:
        return input
    if input.device.type != "cpu":
        return F.dropout(input, probability)
    return input * dropout_mask(input, probability)


def dropout_mask(input: Tensor, probability: float) -> Tensor:
    """Return what `dropout` multiplies a tensor on a CPU with: 0 or 1 / (1 - probability), of its shape and type."""
    seed = int(torch.randint(2**62, (1,)))
    count = input.numel()
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
    )
    kept = words.view(np.uint16)[:count] >= round(probability * STEPS)
    # Multiplying the bits of a float by 0 or 1 is many times faster than converting or selecting.
    same_width: Any = np.uint32 if input.dtype == torch.float32 else np.uint16
    scale = torch.tensor(1 / (1 - probability), dtype=input.dtype)
    bits = scale.view(torch.int32 if input.dtype == torch.float32 else torch.int16).item()
    return torch.from_numpy(kept.astype(same_width) * same_width(bits)).view(input.dtype).view(input.shape)
