"""Strategies by which the ranks of a run share its weights and sum its gradients.

Every rank runs the same passes in the same order, in training and in scoring: a rank without rows runs a placeholder
that contributes nothing. Every rank also makes each call below. So a strategy may communicate anywhere;
tests/training/strategies.py has one that shards every tensor. The strategies here only communicate in `reduce`. With
others, a rank for which memory runs out cannot divide its batch, since the others do not know of it.
"""

from collections.abc import Mapping
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nlu.training.ranks import Ranks

Module = TypeVar("Module", bound=nn.Module)


class Parallel(Protocol):
    """The contract of a strategy for steps and checkpoints."""

    ranks: Ranks
    passes_are_local: bool
    """whether no rank waits for another one within a pass"""

    def prepare(self, module: Module) -> Module:
        """Move a module to the device in place, and return it in the form of this rank."""

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        """Sum the gradients over all ranks in place, and return the sum of `totals`, a small vector.

        A parameter without a gradient on all ranks gets none, so that the optimizer does not change it.
        """

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the Euclidean norm of the whole gradient, on the device."""

    def state_dict(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the whole weights and buffers of a module on rank 0. Every rank must call it."""

    def load(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        """Load whole weights, which every rank has read. Every rank must call it."""

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors that are distributed like the parameters, such as moments and averages, whole on rank 0. Every
        rank must call it with the same names in the same order; the result of the others is not used."""

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part of a tensor that every rank has read, on the device; `like` is its parameter."""


class SingleProcess:
    """One process."""

    passes_are_local = True

    def __init__(self, ranks: Ranks):
        self.ranks = ranks

    def prepare(self, module: Module) -> Module:
        return module.to(self.ranks.device)

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        return totals

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return torch.nn.utils.get_total_norm(gradients)

    def state_dict(self, module: nn.Module) -> dict[str, Tensor]:
        return module.state_dict()

    def load(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        module.load_state_dict(weights)

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole.to(like.device)


class Replicated(SingleProcess):
    """Every rank holds all weights; one message sums all gradients."""

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        # A part of the model that no row of this rank used lacks a gradient here; all ranks must agree on the list of
        # tensors in the message.
        has_gradient = self.ranks.sum_on_host([float(parameter.grad is not None) for parameter in parameters])
        used = [parameter for parameter, ranks in zip(parameters, has_gradient, strict=True) if ranks]
        gradients = []
        for parameter in used:
            # A rank without a gradient for it must take part too.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        if not gradients:
            dist.all_reduce(totals)
            return totals
        # One message instead of one for each tensor. The totals travel in the gradients' type, so their sum over ranks
        # has fp32 precision.
        flat = torch.cat([totals.to(gradients[0].dtype), *(gradient.view(-1) for gradient in gradients)])
        dist.all_reduce(flat)
        pieces = flat[len(totals) :].split([gradient.numel() for gradient in gradients])
        # Copied back into the same tensors, which the optimizer's kernel knows; one call for all of them.
        torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])
        return flat[: len(totals)].to(totals.dtype)


def strategy(ranks: Ranks) -> Parallel:
    """Return the strategy for these ranks."""
    return SingleProcess(ranks) if ranks.world_size == 1 else Replicated(ranks)
