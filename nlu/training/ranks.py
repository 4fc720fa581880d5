"""The ranks of a run, and their communication on the host.

Each device has one process. Messages on the host use gloo, so they need no memory of an accelerator and never wait for
one. Gradients on CUDA devices use nccl.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from nlu.config import stopping
from nlu.config.errors import UserError
from nlu.jobs.placement import placement, reachable
from nlu.runs.provenance import usable_cores
from nlu.search.faults import ProcessLost, lost_a_peer

Value = TypeVar("Value")

TIMEOUT_MIN = 120.0
"""long, since the leader of a node may tokenize a large set while the others wait"""


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of the run."""

    rank: int
    world_size: int
    device: torch.device
    host_group: dist.ProcessGroup | None = None
    """the group for messages on the host; None: the default group"""
    local_rank: int = 0
    """the rank on its node"""
    nodes: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def leaders_go_first(self) -> Iterator[None]:
        """Run the block on one rank of each node first, then on the others, which find the results on the disk.

        If nodes share the disk, several leaders run the block at the same time, so it must allow that, as for the jobs
        of a grid.
        """
        # One barrier in all: the others enter it before the block, the leader after it.
        if self.local_rank:
            self.barrier()
        yield
        if not self.local_rank:
            self.barrier()

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier(group=self.host_group)

    def sum_gradients(self, parameters: list[nn.Parameter], totals: torch.Tensor) -> torch.Tensor:
        """Sum the gradients over all ranks in place; return the sum of `totals`, a small vector, over all ranks.

        A parameter without a gradient on all ranks gets none, so that the optimizer does not change it.
        """
        if self.world_size == 1:
            return totals
        # A part of the model that no row of this rank used lacks a gradient here; all ranks must agree on the list of
        # tensors in the message.
        has_gradient = self.sum_on_host([float(parameter.grad is not None) for parameter in parameters])
        gradients = []
        for parameter, ranks in zip(parameters, has_gradient, strict=True):
            if ranks:
                # A rank without a gradient for it must take part too.
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        # One message instead of one for each tensor. The totals travel in the gradients' type, so their sum over ranks
        # has fp32 precision.
        flat = torch.cat([totals.float(), *(gradient.view(-1) for gradient in gradients)])
        dist.all_reduce(flat)
        pieces = flat[len(totals) :].split([gradient.numel() for gradient in gradients])
        # Copied back into the same tensors, which the optimizer's kernel knows; one call for all of them.
        if gradients:
            torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])
        return flat[: len(totals)].to(totals.dtype)

    def all_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks, in order, on every rank; `rows` may differ in the number of rows only."""
        if self.world_size == 1:
            return rows
        counts = [int(count) for count in self.all_on_host(float(len(rows)))]
        begin = sum(counts[: self.rank])
        # Zeros add nothing, so the sum has the same bits as the rows.
        whole = rows.new_zeros(sum(counts), *rows.shape[1:])
        whole[begin : begin + len(rows)] = rows
        dist.all_reduce(whole)
        return whole

    def take_first(self, tensor: torch.Tensor) -> None:
        """Replace a tensor on the device by that of rank 0."""
        if self.world_size > 1:
            dist.broadcast(tensor, 0)

    def sum_on_host(self, numbers: list[float]) -> list[float]:
        """Return the sum of each number over all ranks, in float64, on every rank."""
        if self.world_size == 1:
            return numbers
        # float64 holds counts and flags exactly.
        summed = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(summed, group=self.host_group)
        return summed.tolist()

    def all_on_host(self, number: float) -> list[float]:
        """Return the number of each rank, in order, on every rank."""
        own = [0.0] * self.world_size
        own[self.rank] = number
        return self.sum_on_host(own)

    def gather_to_first(self, value: Value) -> list[Value] | None:
        """Return the values of all ranks, in order, on rank 0; None elsewhere."""
        if self.world_size == 1:
            return [value]
        gathered = [value] * self.world_size if self.is_first else None
        dist.gather_object(value, gathered, group=self.host_group)
        return gathered

    def from_first(self, value: Any) -> Any:
        """Return the value of rank 0 on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.host_group)
        return box[0]


def choose_device(wanted: str, local_rank: int, keys: str = "trainer.") -> torch.device:
    """Return the device of a local rank. Raises UserError if it does not exist.

    `keys` is the prefix of `device` and `devices` in the configuration, for messages.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(f"{keys}device is cuda, but torch sees no CUDA device; set {keys}device=cpu or auto")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"{keys}devices asks for {local_rank + 1} CUDA devices, but there are {torch.cuda.device_count()}; "
            f"set {keys}devices, or {keys}device=cpu"
        )
    # By default, torch allows TF32 in convolutions, whose products then have only 10 bits although fp32 was requested.
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", local_rank)


@contextmanager
def process_group(wanted_device: str, keys: str = "trainer.", timeout_min: float = TIMEOUT_MIN) -> Iterator[Ranks]:
    """Join the group of the environment, if any, and leave it at the end; `keys` as in `choose_device`.

    Raises ProcessLost if another rank has ended or does not answer within `timeout_min`.
    """
    keep_freed_memory()
    place = placement()
    device = choose_device(wanted_device, place.local_rank, keys)
    if place.meeting is None:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Otherwise each process would use all cores. The number of threads also affects the rounding of sums on a CPU, so
    # it is part of the saved state's `machine`.
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // place.local_world_size))
    timeout = timedelta(minutes=timeout_min)
    store, rank, world_size = next(
        dist.rendezvous(reachable(place.meeting), place.rank, place.world_size, timeout=timeout)
    )
    store.set_timeout(timeout)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timeout,
        rank=rank,
        world_size=world_size,
        store=dist.PrefixStore("nlu", store),
    )
    # nccl sends only tensors on a device. Every rank must create the group.
    host_group = dist.new_group(backend="gloo", timeout=timeout) if device.type == "cuda" else None
    try:
        ranks = Ranks(rank, world_size, device, host_group, place.local_rank, place.nodes)
        yield ranks
        # Rank 0 hosts the addresses of the group: if it left first, the last message of another rank could fail.
        ranks.barrier()
    except RuntimeError as error:
        # If the run is asked to stop, a rank that has ended is no fault.
        if not lost_a_peer(error) or stopping.received():
            raise
        raise ProcessLost(f"another rank has ended or did not answer ({error})") from error
    finally:
        dist.destroy_process_group()


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Make glibc keep the memory of a batch for the next one, up to 256 MiB.

    Otherwise the system clears the pages again: 5 % of the time of a step of 4 layers of 312 on a CPU. Other C
    libraries, and settings of the user, are not changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    own_settings = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    if mallopt is not None and not any(name in os.environ for name in own_settings):
        # The largest threshold that glibc takes.
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)
