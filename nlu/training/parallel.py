"""Strategies by which the ranks of a run share its weights and sum its gradients: the group `parallel`.

Every rank runs the same passes in the same order, in training and in scoring: a rank without rows runs a placeholder
that contributes nothing. Every rank also makes each call below. So a strategy may communicate anywhere;
tests/training/strategies.py has one that shards every tensor. The strategies here only communicate in `reduce`. With
others, a rank for which memory runs out cannot divide its batch, since the others do not know of it.
"""

import logging
from collections.abc import Mapping
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from nlu.config.choices import choice_of, target_of
from nlu.config.keys import takes
from nlu.config.targets import TARGET, build
from nlu.config.types import ConfigLike
from nlu.training import keys as schemas
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)


class Parallel(Protocol):
    """The contract of a strategy for steps and checkpoints.

    A choice of the group `parallel` gets the ranks, and its options by keyword.
    """

    ranks: Ranks
    passes_are_local: bool
    """whether no rank waits for another one within a pass"""

    def prepare(self, module: Module) -> Module:
        """Move a module to the device in place, and return it in the form of this rank."""

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        """Sum the gradients over all ranks in place; return the sum of `totals`, a small vector, over all ranks.

        A parameter without a gradient on all ranks gets none, so that the optimizer does not change it.
        """

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Return, on the device, the Euclidean norm of the whole gradient, equal on all ranks."""

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors that are distributed like the parameters, such as weights, moments and averages, whole on rank
        0. Every rank must call it with the same names in the same order; the result of the others is not used."""

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return this rank's part of a tensor that every rank has read, on the device; `like` is the tensor whose value
        it becomes, or the parameter that it follows."""


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

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def place(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole.to(like.device)


@takes(schemas.Replicated)
class Replicated(SingleProcess):
    """Every rank holds all weights; one message sums all gradients."""

    def reduce(self, parameters: list[nn.Parameter], totals: Tensor) -> Tensor:
        # A part of the model that no row of this rank used lacks a gradient here; all ranks must agree on the list of
        # tensors in the message.
        has_gradient = self.ranks.sum_on_host([float(parameter.grad is not None) for parameter in parameters])
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
        self.ranks.add_up(flat)
        pieces = flat[len(totals) :].split([gradient.numel() for gradient in gradients])
        # Copied back into the same tensors, which the optimizer's kernel knows; one call for all of them.
        if gradients:
            torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])
        return flat[: len(totals)].to(totals.dtype)


def whole_weights(parallel: Parallel, module: nn.Module) -> dict[str, Tensor]:
    """Return the whole weights and buffers of a module on rank 0. Every rank must call it."""
    return parallel.gather(module.state_dict())


@torch.no_grad()
def load_weights(parallel: Parallel, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights, which every rank has read. Every rank must call it.

    Raises ValueError, with nothing changed, if names or shapes are not those of the module.
    """
    own = module.state_dict()
    if own.keys() != weights.keys():
        raise ValueError(f"{min(own.keys() ^ weights.keys())} is in only one of the two")
    for name, value in own.items():
        # A copy would repeat a smaller tensor.
        if value.shape != weights[name].shape:
            raise ValueError(f"{name} has shape {tuple(weights[name].shape)} there, {tuple(value.shape)} here")
    # By the module itself, which may refuse a state.
    module.load_state_dict({name: parallel.place(weights[name], value) for name, value in own.items()})


def strategy(ranks: Ranks, node: ConfigLike) -> Parallel:
    """Return the strategy for these ranks; `node` is the choice of the group `parallel`."""
    if ranks.world_size > 1:
        chosen: Parallel = build(node, ranks)
        return chosen
    if node[TARGET] != target_of("parallel", "replicated"):
        log.warning(
            "parallel=%s does nothing in a run of one process; set trainer.devices",
            choice_of("parallel", node[TARGET]),
        )
    return SingleProcess(ranks)
