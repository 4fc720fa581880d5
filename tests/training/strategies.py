"""Strategies of several processes that need every process in every pass and for every tensor."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nlu.training.parallel import SingleProcess


class Sharded(SingleProcess):
    """Each process holds a part of every tensor: torch's FSDP, in as many lines as nlu.training.parallel needs."""

    passes_are_local = False

    def prepare(self, module: Any) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.ranks.device.type, (self.ranks.world_size,))
        # Parameters are parts between two passes also of the outermost module, where averages take their place.
        sharded: Any = fully_shard(module.to(self.ranks.device), mesh=mesh, reshard_after_forward=True)
        # Terms are divided by their counts in the whole step, so gradients are added up.
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(1.0)
        return sharded

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        dist.all_reduce(totals)
        return totals

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return whole(torch.nn.utils.get_total_norm(gradients))

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: whole(tensor) for name, tensor in tensors.items()}

    def place(self, whole: Tensor, like: Any) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        # Counts of steps are whole on every process.
        return distribute_tensor(whole, like.device_mesh, like.placements) if whole.shape == like.shape else whole


def whole(tensor: Any) -> Tensor:
    """Return a tensor of which each process holds a part."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
