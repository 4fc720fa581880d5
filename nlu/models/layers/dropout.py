"""Dropout whose masks are fast on a CPU and depend on the example, not on its batch.

Srivastava et al. 2014 (https://jmlr.org/papers/v15/srivastava14a.html). On a CPU torch draws a number from a serial
generator for each element, which takes longer than the normalization after it; here 16 bits of a fast generator decide.
During training each sequence has a random stream (`nlu.models.layers.noise`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.models.layers import noise

STEPS = 2**16
"""probabilities are rounded to a multiple of 1 / STEPS"""


class Dropout(nn.Module):
    """Zero elements with `probability` during training and scale the others by 1 / (1 - probability)."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, input: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """`rows`: the number of input rows of each sequence; None: a row for each token, or one for each sequence."""
        return dropout(input, self.probability, rows) if self.training else input

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


def dropout(input: Tensor, probability: float, rows: Sequence[int] | None = None) -> Tensor:
    """Return the input with elements zeroed at random; `rows` is as in Dropout."""
    if not probability:
        return input
    if input.device.type != "cpu":
        return F.dropout(input, probability)
    return input * dropout_mask(input, probability, rows)


def dropout_mask(input: Tensor, probability: float, rows: Sequence[int] | None = None, first: int = 0) -> Tensor:
    """Return the factors of `dropout` on a CPU, 0 or 1 / (1 - probability), with the shape and the type of the input.

    The first axis of the input has `rows` rows for each sequence, starting with the sequence `first`. Rows after those
    of the last sequence are kept.
    """
    return mask_of_bits(_bits(input, rows, first), input.dtype, probability).view(input.shape)


def mask_of_bits(bits: np.ndarray, dtype: torch.dtype, probability: float) -> Tensor:
    """Return the mask of type `dtype` for random numbers of 16 bits."""
    kept = bits >= round(probability * STEPS)
    # Multiplying the bits of a float by 0 or 1 is many times faster than converting or selecting.
    same_width: Any = np.uint32 if dtype == torch.float32 else np.uint16
    scale = torch.tensor(1 / (1 - probability), dtype=dtype)
    factor = scale.view(torch.int32 if dtype == torch.float32 else torch.int16).item()
    return torch.from_numpy(kept.astype(same_width) * same_width(factor)).view(dtype)


def _bits(input: Tensor, rows: Sequence[int] | None, first: int) -> np.ndarray:
    """Return 16 random bits for each element of the input."""
    count = input.numel()
    if (streams := noise.active()) is None:
        seed = int(torch.randint(2**62, (1,)))
        words = np.random.Generator(np.random.SFC64(seed)).integers(
            0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
        )
        return words.view(np.uint16)[:count]
    width = count // max(1, len(input))
    bits = streams.bits([each * width for each in rows or streams.rows(len(input))], first)
    assert len(bits) <= count, "the rows are of another batch"
    return bits if len(bits) == count else np.pad(bits, (0, count - len(bits)), constant_values=STEPS - 1)
