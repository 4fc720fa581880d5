"""Buffers that passes change and checkpoints contain, such as the running statistics of batch norm."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nlu.training.ranks import Ranks


class Buffers:
    """The buffers of some modules. Without any, which is usual, nothing is done."""

    def __init__(self, modules: Sequence[nn.Module], ranks: Ranks):
        self._ranks = ranks
        self._kept: dict[int, list[Tensor]] = {}
        """those before the last step and the one before it, which an accelerator may still compute, by number"""
        self.owners = [
            (module, name)
            for root in modules
            for module in root.modules()
            for name in module._buffers
            # The others are constants, which no checkpoint contains.
            if name not in module._non_persistent_buffers_set and module._buffers[name] is not None
        ]

    @property
    def _now(self) -> list[Tensor]:
        # Looked up each time, since a module may put another tensor in the place of a buffer.
        return [getattr(module, name) for module, name in self.owners]

    @torch.no_grad()
    def begin(self, number: int) -> None:
        """Begin the passes of step `number`; if they have begun before, the buffers are put back as they were then."""
        for buffer, before in zip(self._now, self._kept.get(number, self._now), strict=True):
            buffer.copy_(before)
        self._kept = {step: kept for step, kept in self._kept.items() if abs(step - number) <= 1}
        self._kept[number] = [buffer.clone() for buffer in self._now]

    @torch.no_grad()
    def make_equal(self) -> None:
        """Give all ranks the buffers of rank 0, after each step. Every rank must call it."""
        for buffer in self._now:
            self._ranks.take_first(buffer)
