"""Memory of gradients that outlives a step.

A gradient as large as its weight, allocated anew in every step, makes the system map and clear its pages each time; for
a word embedding that takes ten times as long as adding up the gradient itself.
"""

import torch
from torch import Tensor

from nlu.models.layers.torch_private import storage_use_count


class ReusedMemory:
    """A float32 tensor on the CPU that is handed out again once nobody holds what was handed out before."""

    _tensor: Tensor | None = None
    _counts_at_rest: int | None = None

    def take(self, shape: torch.Size) -> Tensor:
        """Return an uninitialised tensor of this shape that nobody else holds.

        It is the same memory as last time unless that is still in use, as a gradient is that further micro-batches are
        added to.
        """
        if self._tensor is None or self._tensor.shape != shape:
            self._tensor = torch.empty(shape)
            self._counts_at_rest = storage_use_count(self._tensor)
        is_free = self._counts_at_rest is not None and storage_use_count(self._tensor) == self._counts_at_rest
        # An alias of its own, so that autograd may adopt it as the gradient instead of copying it.
        return self._tensor.detach() if is_free else torch.empty(shape)
