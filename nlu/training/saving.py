"""The tensors in `last`, from which training continues, gathered from every rank."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nlu.optim.optimizer import named_parameters
from nlu.runs.checkpoint import OrderKey, opened_last, source_of
from nlu.runs.state import State
from nlu.tasks.composite import task_of
from nlu.training.evaluation import keep_predictions
from nlu.training.meter import count_costs
from nlu.training.parallel import Parallel, load_weights, whole_weights
from nlu.training.parts import Training
from nlu.training.step import Stepper

log = logging.getLogger(__name__)

Tensors = dict[str, dict[str, Tensor]]
"""the tensors of each part, which becomes a file, by name"""


@dataclass(frozen=True)
class TrainedParts:
    """Everything that training changes, on this rank."""

    parallel: Parallel
    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor] | None
    """the moving average of the model's weights, by parameter"""
    own: nn.Module | None = None
    """a module that the method trains in addition to the model"""

    def gather(self) -> Tensors:
        """Return the whole tensors on rank 0. Every rank must call it, since a strategy may hold a part of each tensor
        on each rank; the result of the others is not used."""
        parts = {
            "model": whole_weights(self.parallel, self.model),
            "optimizer": self.parallel.gather(optimizer_tensors(self.model, self.own, self.optimizer)),
        }
        if self.average is not None:
            parts["average"] = self.parallel.gather(self.average)
        if self.own is not None:
            parts["method"] = whole_weights(self.parallel, self.own)
        return parts

    def load(self, path: Path) -> tuple[State, OrderKey]:
        """Load a saved state; returns the state and the `order` saved with it. Every rank must call it.

        What the saved run did not have, such as moments of weights that it had frozen, a moving average or the own
        module of a method, begins here; what this run does not have is left out. Raises CheckpointError if a file is
        damaged or belongs to another model.
        """
        with opened_last(path) as saved:
            load_weights(self.parallel, self.model, saved.tensors("model"))
            if self.own is not None and "method" in saved.parts:
                load_weights(self.parallel, self.own, saved.tensors("method"))
            load_optimizer_tensors(
                self.model, self.own, self.optimizer, saved.tensors("optimizer"), self.parallel.place
            )
            if self.average is not None:
                self._load_average(saved.tensors("average") if "average" in saved.parts else None)
                if "average" not in saved.parts:
                    log.info("%s has no moving average; the average starts from its weights", source_of(path))
            return saved.state, saved.order

    @torch.no_grad()
    def _load_average(self, saved: dict[str, Tensor] | None) -> None:
        """Set the moving average to a saved one, or to the current weights."""
        assert self.average is not None
        for name, parameter in self.model.named_parameters():
            if name in self.average:
                # A run that is continued with `trainer.ema_decay` set for the first time starts its average here.
                value = self.parallel.place(saved[name], parameter) if saved and name in saved else parameter
                self.average[name].copy_(value)


def optimizer_tensors(model: nn.Module, own: nn.Module | None, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the optimizer by `<field>:<parameter name>`."""
    return {
        f"{key}:{name}": torch.as_tensor(value)
        # By name and not by torch's index of parameters, so that a state does not depend on the grouping of parameters.
        for name, parameter in named_parameters(model, own)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    model: nn.Module,
    own: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    place: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Set the state of the optimizer from a result of `optimizer_tensors`."""
    parameters = dict(named_parameters(model, own))
    for full_name, value in tensors.items():
        key, _, name = full_name.partition(":")
        # A run that was begun with other frozen weights, or another method, has moments that this one does not use.
        if name in parameters and parameters[name].requires_grad:
            # The step counter and the moments of a fused optimizer are on the device of the parameter.
            optimizer.state[parameters[name]][key] = place(value, parameters[name])


def save_last(run: Training) -> None:
    """Replace checkpoints/last.

    Every rank must call it, since each may hold only a part of every tensor. Rank 0 writes, and the others wait, so
    that no rank runs ahead of the saved state.

    The predictions of the best evaluation are also replaced here, so that they match the best evaluation in the state.
    Best checkpoints that the new state no longer names are removed last: if the run is killed before, it continues from
    the old state, which still names them.
    """
    run.stepper.phases.begin("saving")
    run.journal.gather(run.state.window)
    # A continued run adds to them, so its next row has the time of all steps since this one.
    count_costs(run)
    # Equal on all ranks, since keep_predictions is a collective. After a kill between these files and the state, the
    # run reaches the same evaluation again and writes the same bytes.
    for name, one in run.unsaved.items():
        task = task_of(run.task, one.part.member)
        step, rows = run.state.best[0].step, run.sampled_rows.get(name)
        keep_predictions(run.run_dir, name, one, task, run.stepper.ranks, step=step, sampled_rows=rows)
        one.spool.close()
    run.unsaved = {}
    tensors = trained_parts(run.stepper).gather() if run.trainer.save else {}
    run.state.precision = run.stepper.precision.state()
    if run.stepper.ranks.is_first:
        # A run that continues from this state does not write earlier rows again, so they must be on the disk.
        for table in run.tables.values():
            table.sync()
        run.journal.sync()
        run.checkpoints.save_last(tensors, run.state, run.order_key)
        run.checkpoints.arrange(run.state.best)
        run.after_save()
    run.stepper.ranks.barrier()
    run.stepper.phases.begin("other")


def trained_parts(stepper: Stepper) -> TrainedParts:
    """Return everything that training changes."""
    return TrainedParts(stepper.parallel, stepper.model, stepper.optimizer, stepper.average, stepper.own)
