"""An embedding whose gradient costs the lookups of a step and one pass over the table.

Axes: T positions, V entries of the table, D width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.models.layers.memory import ReusedMemory


class Embedding(nn.Embedding):
    """nn.Embedding; on a CPU its gradient reuses the memory of the last step."""

    def __init__(self, entries: int, width: int):
        super().__init__(entries, width)
        self._memory = ReusedMemory()

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors (T, D) of the entries (T,)."""
        if self.weight.device.type != "cpu":
            return F.embedding(input, self.weight)
        return _LookUp.apply(input, self.weight, self._memory)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, entries_T: Tensor, weight_VD: Tensor, memory: ReusedMemory) -> Tensor:
        ctx.save_for_backward(entries_T)
        ctx.shape, ctx.memory = weight_VD.shape, memory
        return F.embedding(entries_T, weight_VD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (entries_T,) = ctx.saved_tensors
        return None, ctx.memory.take(ctx.shape).zero_().index_add_(0, entries_T, gradients[0].float()), None
