"""What `last` holds of a run beside its state: all tensors that training continues from, gathered from every rank."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nlu.optim.optimizer import named_parameters
from nlu.runs.checkpoint import OrderKey, opened_last, source_of
from nlu.runs.state import State
from nlu.training.parallel import Parallel

log = logging.getLogger(__name__)

Tensors = dict[str, dict[str, Tensor]]
"""of each part, which is a file, by name"""


@dataclass(frozen=True)
class TrainedParts:
    """What training changes, as this rank holds it."""

    parallel: Parallel
    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor] | None
    """moving average of the model's weights, by parameter"""
    own: nn.Module | None = None
    """what the method trains beside the model"""

    def gather(self) -> Tensors:
        """Return all of it, whole, on rank 0. Every rank calls it, since a strategy may hold a part of each tensor on
        each rank; what the others get is not used."""
        parts = {
            "model": self.parallel.state_dict(self.model),
            "optimizer": self.parallel.gather(optimizer_tensors(self.model, self.own, self.optimizer)),
        }
        if self.average is not None:
            parts["average"] = self.parallel.gather(self.average)
        if self.own is not None:
            parts["method"] = self.parallel.state_dict(self.own)
        return parts

    def load(self, path: Path) -> tuple[State, OrderKey]:
        """Put a saved state in place; returns the state and the `order` that it was saved with. Every rank calls it.

        Raises CheckpointError where a file is damaged or belongs to another model.
        """
        with opened_last(path) as saved:
            self.parallel.load(self.model, saved.tensors("model"))
            if self.own is not None:
                self.parallel.load(self.own, saved.tensors("method"))
            load_optimizer_tensors(
                self.model, self.own, self.optimizer, saved.tensors("optimizer"), self.parallel.place
            )
            if self.average is not None:
                self._load_average(saved.tensors("average") if "average" in saved.parts else None)
                if "average" not in saved.parts:
                    log.info("%s was saved without a moving average of the weights; it begins with them",
                             source_of(path))  # fmt: skip
            return saved.state, saved.order

    @torch.no_grad()
    def _load_average(self, saved: dict[str, Tensor] | None) -> None:
        """Set the moving average to a saved one, or to the weights as they are."""
        assert self.average is not None
        for name, parameter in self.model.named_parameters():
            if name in self.average:
                value = parameter if saved is None else self.parallel.place(saved[name], parameter)
                self.average[name].copy_(value)


def optimizer_tensors(model: nn.Module, own: nn.Module | None, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as `<field>:<parameter name>`."""
    return {
        f"{key}:{name}": torch.as_tensor(value)
        for name, parameter in named_parameters(model, own)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    model: nn.Module, own: nn.Module | None, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor],
    place: Callable[[Tensor, Tensor], Tensor],
) -> None:  # fmt: skip
    """Set the optimizer's state from what `optimizer_tensors` gave."""
    parameters = dict(named_parameters(model, own))
    for full_name, value in tensors.items():
        key, _, name = full_name.partition(":")
        # The step counter of a fused optimizer is where the parameter is, and so are its moments.
        optimizer.state[parameters[name]][key] = place(value, parameters[name])
