"""Ranks: who they are, how they add up gradients, how they pass rows to rank 0.

One process for each device, gloo on CPU and nccl on CUDA. Ranks come from the environment that torchrun or
`nlu.training.launch` sets.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nlu.config.errors import UserError

TIMEOUT = timedelta(hours=2)
"""Rank 0 may tokenize a large set while the others wait."""


@dataclass(frozen=True)
class Ranks:
    """This process among all of the run's."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Let rank 0 do the block alone, then the others, who find its results on disk."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def sum_gradients(self, parameters: list[torch.nn.Parameter], extra: Tensor) -> Tensor:
        """Add up all gradients over the ranks, in place, in one message; returns the sum of `extra` (a small vector).

        A parameter without a gradient counts as zero, so that a rank without examples takes part.
        """
        if self.world_size == 1:
            return extra
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([extra.to(gradients[0].dtype), *(gradient.view(-1) for gradient in gradients)])
        dist.all_reduce(flat)
        pieces = flat[len(extra) :].split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])
        return flat[: len(extra)]

    def gather_to_first(self, value: Any) -> list[Any] | None:
        """Return every rank's value, by rank, on rank 0; None elsewhere."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.world_size if self.is_first else None
        dist.gather_object(value, gathered)
        return gathered

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]


def launched_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several that something else started."""
    return "RANK" in environment and "WORLD_SIZE" in environment and "LOCAL_RANK" in environment


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """Return the device of a local rank. Raises UserError where there is none for it."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("trainer.device is cuda, but torch sees no CUDA device; set trainer.device=cpu or auto")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"trainer.devices asks for {local_rank + 1} CUDA devices, but there are {torch.cuda.device_count()}; "
            "set trainer.devices, or trainer.device=cpu"
        )
    return torch.device("cuda", local_rank)


@contextmanager
def process_group(wanted_device: str) -> Iterator[Ranks]:
    """Join the group that the environment describes, or stand alone; leave it on every way out."""
    if not launched_by_torchrun():
        yield Ranks(0, 1, choose_device(wanted_device, 0))
        return
    rank, world_size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = choose_device(wanted_device, local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        share = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
        torch.set_num_threads(share)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield Ranks(rank, world_size, device)
        # Rank 0 keeps the addresses: were it to leave first, another's last message could fail.
        dist.barrier()
    finally:
        dist.destroy_process_group()
