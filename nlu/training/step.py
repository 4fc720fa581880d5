"""One optimizer step: count, forward and backward over its micro-batches, sum over ranks, check, clip, update."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import OutOfMemory, UserError
from nlu.data.examples import Examples
from nlu.methods.method import Method, Scale
from nlu.models.layers.linear import Linear
from nlu.models.layers.reused import ReusedMemory, memories_of
from nlu.models.task_model import TaskModel
from nlu.optim.optimizer import named_parameters
from nlu.runs import summary
from nlu.tasks.task import Task, comparing_loss
from nlu.training.anomaly import detecting
from nlu.training.inspection import Inspector
from nlu.training.memory import REMEDY, divided, refused, release, tried
from nlu.training.parallel import Parallel
from nlu.training.passes import Passes, Share
from nlu.training.pending import PendingStep, explained
from nlu.training.phases import phases_on
from nlu.training.precision import NumberFormat
from nlu.training.saving import TrainedParts

log = logging.getLogger(__name__)


@dataclass
class Stepper:
    """Everything a step needs that does not change from step to step."""

    model: TaskModel
    optimizer: torch.optim.Optimizer
    task: Task
    method: Method
    precision: NumberFormat
    parallel: Parallel
    seed: int
    clip_norm: float
    average: dict[str, Tensor] | None
    """the moving average of the weights, by parameter"""
    ema_decay: float
    own: nn.Module | None = None
    """a module that the method trains in addition to the model"""
    max_loss: float | None = None
    """a step with a larger loss is an error; None: any finite loss is allowed"""
    pieces: int = 1
    """the number of parts in which each micro-batch is computed; doubled on all ranks if one of them has too little
    memory"""
    detect_anomaly: bool = False
    """whether passes stop at the first operation whose gradient is NaN"""

    def __post_init__(self) -> None:
        self.ranks = self.parallel.ranks
        self.device = self.ranks.device
        named = named_parameters(self.model, self.own)
        by_name = {name: parameter for name, parameter in named if parameter.requires_grad}
        self.trained = list(by_name.values())
        self.phases = phases_on(self.device)
        self.passes = Passes(
            self.model, self.task, self.method, self.precision, self.ranks, self.seed, self.trained, self.phases,
            self.own,
        )  # fmt: skip
        self.weights = self.passes.weights
        self.parallel.share(by_name, self.optimizer, self.average, self._memories(by_name), self._linears())
        self._of_model = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self.is_asynchronous = self.device.type == "cuda"
        self._failed = torch.zeros((), device=self.device) if self.is_asynchronous else None

    def step(
        self,
        part: Examples,
        micro_batches: list[np.ndarray],
        number: int,
        stop: bool,
        epoch: int = 0,
        inspector: Inspector | None = None,
        settles: bool = True,
    ) -> PendingStep:
        """Do step `number`, from 1, over this rank's share of each micro-batch; `inspector` looks into it.

        Without `settles`, other ranks may still update weights that this one shares, until the next step or
        `parallel.settle`.

        If the loss or the gradient is not finite, or the loss is above `max_loss`, nothing is updated. With a precision
        that scales the loss, a step that is not finite is skipped; otherwise nothing is updated from then on. The host
        never waits for an accelerator here; on a CPU, a UserError is raised at once.

        If memory runs out on a rank, `pieces` is doubled on all of them and the passes are run again, which gives the
        same update except for rounding. Raises OutOfMemory if a micro-batch cannot be divided any further.
        """
        shares = self.passes.shares(part, divided(micro_batches, self.pieces), epoch)
        counts, own_counts, stop = self.passes.count(shares, stop)
        scale = self._scale(counts)
        # What gradients are divided by: the rows of all ranks whose gradients are summed.
        divided_by = scale if self.parallel.sums_gradients(number) else self._scale(own_counts)
        loss_scale = self.precision.loss_scale(self.device)
        # Only the backward pass sees the loss scale: `totals` are sums of the terms without any factor, so the reported
        # loss uses `scale`.
        used: Scale = (
            divided_by if loss_scale is None else {name: each * loss_scale for name, each in divided_by.items()}
        )
        # Before the update only gradients change, so the passes can be run again.
        while (totals := self._run_if_it_fits(shares, used, number)) is None:
            self._divide(micro_batches, number)
            shares = self.passes.shares(part, divided(micro_batches, self.pieces), epoch)
        self.phases.begin("optimizer")
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        own_norm = self.parallel.norm(gradients)
        if loss_scale is not None:
            # Clipping and train.tsv use the norm of the gradient of the loss itself.
            own_norm = own_norm / loss_scale
        gnorm = self.parallel.norm_over_ranks(own_norm, number)
        numbers = [totals, gnorm.view(1)]
        if self.max_loss is not None:
            numbers.append(self._is_above(self.max_loss, totals, scale).double().view(1))
        if loss_scale is not None:
            numbers.append(loss_scale.view(1))
        pending = self._pending(
            number,
            counts,
            scale,
            stop,
            torch.cat(numbers),
            partial(explained, self, part, micro_batches, number, epoch, used),
        )
        # Raises before anything is updated.
        if not self.is_asynchronous:
            pending.result()
        if inspector is not None:
            with self.phases.within("other"):
                inspector.before_update(number, loss_scale)
                # It has read weights.
                self.parallel.settle()
        # A larger norm is reduced to clip_norm; the small constant keeps the result below it.
        divisor = ((own_norm + 1e-6) / self.clip_norm).clamp(min=1.0) if self.clip_norm else torch.ones_like(own_norm)
        # One test on the device for all numbers: infinity and NaN survive the additions. On several ranks it is that of
        # sums over all of them, so all decide alike.
        is_finite = torch.isfinite(totals.sum() + gnorm)
        with refused(f"memory ran out in step {number}, where weights are updated"):
            if loss_scale is None:
                # An asynchronous step that failed is made harmless on the device, since the host learns of it too late.
                self._update(gradients, divisor.float(), is_finite)
                self._update_average(number)
            else:
                self._update_unless_skipped(gradients, divisor.float() * loss_scale, is_finite, loss_scale, number)
                self.precision.update(is_finite)
            if settles or inspector is not None:
                self.parallel.settle()
        self.phases.begin("other")
        if inspector is not None:
            inspector.after_update()
        return pending

    def _memories(self, by_name: dict[str, nn.Parameter]) -> dict[str, ReusedMemory]:
        """Return the memory into which the gradient of a parameter is written, where it has one."""
        modules = [self.model] if self.own is None else [self.model, self.own]
        found = {id(weight): memory for module in modules for weight, memory in memories_of(module)}
        return {name: found[id(parameter)] for name, parameter in by_name.items() if id(parameter) in found}

    def _linears(self) -> list[Linear]:
        """Return the layers that multiply by copies of their weights in bf16."""
        kind = self.device.type
        with self.precision.autocast(self.device):
            if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.bfloat16:
                return []
        modules = [self.model] if self.own is None else [self.model, self.own]
        return [each for module in modules for each in module.modules() if isinstance(each, Linear)]

    def _scale(self, counts: dict[str, int]) -> dict[str, float]:
        """Return the factor of the sum of each term over so many rows."""
        return {name: self.weights[name] / max(1, count) for name, count in counts.items()}

    def synchronize(self, number: int) -> None:
        """Make all that training changes equal on all ranks after step `number`, if it is not."""
        if self.parallel.sums_gradients(number):
            return
        self.phases.begin("reduce")
        of_optimizer = [value for each in self.trained for value in self.optimizer.state.get(each, {}).values()]
        # Counts of steps, which have no axis, are equal anyway.
        moments = [value for value in of_optimizer if isinstance(value, Tensor) and value.dim()]
        with refused(f"memory ran out after step {number}, where processes exchange their weights"):
            self.parallel.synchronize(self.trained, [*moments, *(self.average or {}).values()])
        self.phases.begin("other")

    def _is_above(self, max_loss: float, totals: Tensor, scale: dict[str, float]) -> Tensor:
        """Return whether the loss is finite and above `max_loss`; on an accelerator, all later steps then fail."""
        loss = totals.new_zeros(())
        for total, factor in zip(totals, scale.values(), strict=True):
            loss = loss + total * factor
        is_above = torch.isfinite(loss) & (loss > max_loss)
        if self._failed is not None:
            self._failed = torch.maximum(self._failed, is_above.float())
        return is_above

    def _run_if_it_fits(self, shares: list[Share | None], scale: Scale, number: int) -> Tensor | None:
        """Sum the gradients of the passes over ranks; return the sum of each term over the rows of all ranks, or None
        on all of them if memory ran out on any."""
        is_local, forget = self.parallel.passes_are_local, summary.mark()
        with detecting(number) if self.detect_anomaly and not self._may_skip() else nullcontext():
            if is_local:
                own = tried(lambda: self.passes.run(shares, scale, number))
            else:
                own = self.passes.run(shares, scale, number)
        self.phases.begin("reduce")
        with refused(f"memory ran out in step {number}, where gradients are summed over ranks"):
            if not is_local:
                assert own is not None, "an error was raised"
                self.passes.buffers.make_equal()
                return self.parallel.reduce(self.trained, own, number)
            fits = own is not None
            own = torch.zeros(len(self.weights), dtype=torch.float64, device=self.device) if own is None else own
            totals = self.parallel.reduce_if_all_fit(self.trained, own, number, fits)
        if totals is None:
            self.passes.forget_gradients()
            # What these passes have recorded is recorded again.
            forget()
        else:
            self.passes.buffers.make_equal()
        return totals

    def _may_skip(self) -> bool:
        """Return whether an overflow only skips the update: it becomes NaN in the backward pass of a healthy run.

        This waits for the device.
        """
        loss_scale = self.precision.loss_scale(self.device)
        return loss_scale is not None and bool(self.precision.may_skip(loss_scale))

    def _divide(self, micro_batches: list[np.ndarray], number: int) -> None:
        """Double `pieces` after memory ran out in step `number`. Raises the same OutOfMemory on all ranks."""
        release(self.device)
        rows = max(map(len, micro_batches))
        largest = int(max(self.ranks.all_on_host(float(rows))))
        before = -(-largest // self.pieces)
        where = "" if self.ranks.world_size == 1 else " of a rank"
        said = f"memory ran out in step {number}, in a micro-batch{where} of {before} example{'s' * (before > 1)}"
        if (loss := comparing_loss(self.task)) is not None:
            raise OutOfMemory(
                f"{said}, which is not divided, because {loss} compares its examples with one another; "
                f"set trainer.batch_size (or trainer.batch_tokens) lower; or {REMEDY}"
            )
        if before == 1:
            raise OutOfMemory(f"{said}, which cannot be divided; {REMEDY}")
        self.pieces *= 2
        log.warning(
            "%s; from here on it is computed in parts of %d, which changes the update by no more than rounding",
            said,
            -(-largest // self.pieces),
        )

    @property
    def trained_weights(self) -> list[nn.Parameter]:
        """The trained parameters of the model."""
        return list(self._of_model.values())

    @property
    def saved(self) -> TrainedParts:
        """The parts of the step that a checkpoint contains."""
        return TrainedParts(self.parallel, self.model, self.optimizer, self.average, self.own)

    def _pending(
        self,
        number: int,
        counts: dict[str, int],
        scale: dict[str, float],
        stop: bool,
        numbers: Tensor,
        error: Callable[[str, float, float | None], UserError],
    ) -> PendingStep:
        arrived = None
        if self.is_asynchronous:
            # Only a copy into pinned memory does not block the host.
            numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        may_skip = self.precision.may_skip
        return PendingStep(
            number,
            error,
            self.clip_norm,
            counts,
            scale,
            stop,
            lambda at: bool(may_skip(at)),
            self.max_loss,
            numbers,
            arrived,
        )

    @torch.no_grad()
    def _update(self, gradients: list[Tensor], divisor: Tensor, is_finite: Tensor) -> None:
        if self._failed is not None:
            # After a failed step all later ones fail too, since the host learns of it one step late.
            self._failed = torch.maximum(self._failed, (~is_finite).float())
        # Fused kernels do not mark weights as changed, but cached copies in lower precision must be renewed.
        torch.autograd.graph.increment_version(self.trained)
        self.parallel.update(self.optimizer, gradients, divisor, self._failed)

    @torch.no_grad()
    def _update_unless_skipped(
        self, gradients: list[Tensor], divisor: Tensor, is_finite: Tensor, loss_scale: Tensor, number: int
    ) -> None:
        """Update the weights and their average, unless the scaled gradient overflowed."""
        if self._failed is None:
            if is_finite:
                self._update(gradients, divisor, is_finite)
                self._update_average(number)
            return
        # The host learns of it one step late, so the device decides. An overflow that may not be skipped also stops all
        # later steps.
        overflowed = ~is_finite
        self._failed = torch.maximum(self._failed, (overflowed & ~self.precision.may_skip(loss_scale)).float())
        skipped = torch.maximum(self._failed, overflowed.float())
        torch.autograd.graph.increment_version(self.trained)
        self.parallel.update(self.optimizer, gradients, divisor, skipped)
        self._update_average(number, 1 - skipped)

    @torch.no_grad()
    def _update_average(self, number: int, share: Tensor | None = None) -> None:
        """Move the average towards the weights; `share` is a factor on the device, 0 for a skipped step."""
        if self.average is not None:
            # The decay grows over the first steps; otherwise the average would long consist of the initial weights.
            amount: Tensor | float = 1 - min(self.ema_decay, (1 + number) / (10 + number))
            amount = amount if share is None else amount * share
            # The average follows the trained parameters only; frozen ones and buffers are the same in both.
            pairs = [(self.average[name], parameter.data) for name, parameter in self._of_model.items()]
            for one, weight in pairs:
                if weight.dtype == torch.float16:
                    # The average is fp32; copies of all weights at once would take as much memory as master weights.
                    one.lerp_(weight.float(), amount)
            if others := [pair for pair in pairs if pair[1].dtype != torch.float16]:
                shadow, weights = map(list, zip(*others, strict=True))
                self.parallel.follow(shadow, weights, amount)
