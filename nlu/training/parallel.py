"""How the ranks of a run share its weights and add up its gradients.

A strategy holds no collective inside a micro-batch, so that a rank may run one again, or have fewer than the others.
"""

from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nlu.training.ranks import Ranks

Model = TypeVar("Model", bound=nn.Module)


class Parallel(Protocol):
    """What a step and a checkpoint need of a strategy."""

    ranks: Ranks

    def prepare(self, model: Model) -> Model:
        """Return the model as this rank holds it."""

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        """Add up the gradients over all ranks, in place, and return the sum of `totals`, a small vector.

        A parameter that no rank has a gradient for is left without one, so that no optimizer touches it.
        """

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the Euclidean norm of the whole gradient, on the device."""

    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the whole weights on rank 0."""

    def load(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        """Put whole weights, which every rank has read, in place."""


class Single:
    """One process."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks

    def prepare(self, model: Model) -> Model:
        return model.to(self.ranks.device)

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        return totals

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return torch.nn.utils.get_total_norm(gradients)

    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        return model.state_dict()

    def load(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        model.load_state_dict(weights)


class Replicated(Single):
    """Every rank holds all weights; one message adds up all gradients."""

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        has_gradient = self.ranks.sum_on_host([float(parameter.grad is not None) for parameter in parameters])
        used = [parameter for parameter, ranks in zip(parameters, has_gradient, strict=True) if ranks]
        gradients = []
        for parameter in used:
            # A rank without rows for it takes part all the same.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        if not gradients:
            dist.all_reduce(totals)
            return totals
        flat = torch.cat([totals.to(gradients[0].dtype), *(gradient.view(-1) for gradient in gradients)])
        dist.all_reduce(flat)
        pieces = flat[len(totals) :].split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])
        return flat[: len(totals)].to(totals.dtype)


def strategy(ranks: Ranks) -> Parallel:
    """Return the strategy for these ranks."""
    return Single(ranks) if ranks.world_size == 1 else Replicated(ranks)
