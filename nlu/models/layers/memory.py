"""Memory of gradients that is kept between steps.

If a gradient as large as its weight is allocated in every step, the system maps and clears its pages each time. For a
word embedding this takes ten times as long as computing the gradient.
"""

import torch
from torch import Tensor

from nlu.models.layers.torch_private import storage_use_count


class ReusedMemory:
    """A float32 tensor on the CPU whose memory is reused once all other references to it are gone."""

    _tensor: Tensor | None = None
    _counts_at_rest: int | None = None

    def take(self, shape: torch.Size) -> Tensor:
        """Return an uninitialized tensor of this shape without other references.

        It has the same memory as the last one unless that is still in use, for example by a gradient to which further
        micro-batches are added.
        """
        if self._tensor is None or self._tensor.shape != shape:
            self._tensor = torch.empty(shape)
            self._counts_at_rest = storage_use_count(self._tensor)
        is_free = self._counts_at_rest is not None and storage_use_count(self._tensor) == self._counts_at_rest
        # A new alias, so that autograd can adopt it as the gradient instead of copying it.
        return self._tensor.detach() if is_free else torch.empty(shape)
