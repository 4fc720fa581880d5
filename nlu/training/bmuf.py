"""Block-wise model-update filtering: processes train apart and meet every few steps.

Between two meetings each process updates its weights by the gradient of its rows. At a meeting the mean update of
the block is filtered by a momentum, and all processes continue from the same weights (Chen & Huo 2016, "Scalable
training of deep learning machines by incremental block training with intra-block parallel optimization and blockwise
model-update filtering", equations 3 to 8).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nlu.config.keys import takes
from nlu.training import keys as schemas
from nlu.training.parallel import Replicated, messages
from nlu.training.ranks import Ranks


@takes(schemas.Bmuf)
class Bmuf(Replicated):
    """Every rank holds all weights, which differ from rank to rank within a block."""

    def __init__(self, ranks: Ranks, keys: schemas.Bmuf):
        super().__init__(ranks, schemas.Replicated())
        self.sync_interval, self.block_lr = keys.sync_interval, keys.block_lr
        self.nesterov, self.warmup = keys.nesterov, keys.warmup
        self.block_momentum = 1 - 1 / ranks.world_size if keys.block_momentum is None else keys.block_momentum
        self._start: list[Tensor] | None = None
        """the weights at the start of the block, equal on all ranks; None before the first block of this process"""
        self._momentum: list[Tensor] | None = None
        """the filtered update of the last block, equal on all ranks; None before the first meeting"""

    def sums_gradients(self, number: int) -> bool:
        return number <= self.warmup

    def is_whole(self, number: int) -> bool:
        return number <= self.warmup or (number - self.warmup) % self.sync_interval == 0

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor, number: int) -> Tensor:
        if self.sums_gradients(number):
            return super().reduce(parameters, totals, number)
        if self._start is None:
            # All ranks hold the same weights: this step follows the warm-up or a saved state.
            self._start = [parameter.detach().clone() for parameter in parameters]
        # A gradient of zero instead of none where another rank has one, so that all ranks have the same moments.
        self.gradients_of(parameters)
        self.ranks.add_up(totals)
        return totals

    def norm(self, gradients: list[Tensor], number: int) -> tuple[Tensor, Tensor]:
        own, _ = super().norm(gradients, number)
        if self.sums_gradients(number):
            return own, own
        # Not finite on all ranks if it is not on one. In fp64, since the norm of a scaled gradient may be large.
        mean = own.double() / self.ranks.world_size
        self.ranks.add_up(mean)
        return own, mean.to(own.dtype)

    @torch.no_grad()
    def synchronize(self, parameters: list[nn.Parameter], followers: Sequence[Tensor]) -> None:
        assert self._start is not None, "the step before has set it"
        # The mean of updates instead of weights: a weight that did not change stays exactly as it is.
        updates = [start - parameter for start, parameter in zip(self._start, parameters, strict=True)]
        self._average(updates)
        if self._momentum is None:
            self._momentum = [torch.zeros_like(update) for update in updates]
        for start, momentum, update, parameter in zip(
            self._start, self._momentum, updates, parameters, strict=True
        ):  # fmt: skip
            momentum.mul_(self.block_momentum).add_(update, alpha=self.block_lr)
            start.sub_(momentum)
            if self.nesterov:
                start.sub_(momentum, alpha=self.block_momentum)
            parameter.copy_(start)
        self._average(followers)

    def _average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks."""
        for some in messages(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            self.ranks.add_up(flat)
            flat /= self.ranks.world_size
            for tensor, piece in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
                tensor.copy_(piece.view_as(tensor))

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        return {} if self._momentum is None else dict(zip(names, self._momentum, strict=True))

    def load_state(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            self._momentum = [tensors[name].to(self.ranks.device) for name in names]
