"""One optimizer step: forward and backward over its micro-batches, sum over ranks, check, clip, update."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nlu.data.examples import Examples
from nlu.data.shapes import Shapes
from nlu.methods.method import Method, Scale
from nlu.models.task_model import TaskModel
from nlu.optim.optimizer import follow, named_parameters, update
from nlu.tasks.task import Task
from nlu.training import nonfinite
from nlu.training.compiled import Compiled
from nlu.training.journal import Inspector
from nlu.training.memory import divided, more_pieces
from nlu.training.nonfinite import detecting
from nlu.training.passes import Passes, Share, Step, StepResult
from nlu.training.phases import phases_on
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks


@dataclass
class Stepper:
    """Everything a step needs that does not change from step to step."""

    model: TaskModel
    optimizer: torch.optim.Optimizer
    task: Task
    method: Method
    precision: NumberFormat
    ranks: Ranks
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
    compiled: Compiled | None = None
    """what computes passes in few shapes; None: passes are computed operation by operation"""
    detect_anomaly: bool = False
    """whether passes stop at the first operation whose gradient is NaN"""

    def __post_init__(self) -> None:
        self.device = self.ranks.device
        self.trained = [each for _, each in named_parameters(self.model, self.own) if each.requires_grad]
        self.phases = phases_on(self.device)
        self.passes = Passes(
            self.model, self.task, self.method, self.precision, self.ranks, self.seed, self.trained, self.phases,
            self.own, self.compiled,
        )  # fmt: skip
        self.weights = self.passes.weights
        self.is_asynchronous = self.device.type == "cuda"
        self.ahead = int(self.is_asynchronous)
        """steps that the device computes ahead of the host"""
        self.begun = 0
        """the last step that began to change weights in this process"""
        self._failed = torch.zeros((), device=self.device)
        """on an accelerator: not 0 after a step that must end the run"""

    def step(
        self,
        part: Examples,
        micro_batches: list[np.ndarray],
        number: int,
        stop: bool = False,
        epoch: int = 0,
        inspector: Inspector | None = None,
        shares: list[Share | None] | None = None,
    ) -> Step:
        """Do step `number`, from 1, over this rank's share of each micro-batch; `inspector` looks into it, and `shares`
        are its batches in `pieces`, if they were made ahead.

        If the loss or the gradient is not finite, or the loss is above `max_loss`, nothing is updated. With a precision
        that scales the loss, a step that is not finite is skipped; otherwise nothing is updated from then on. On a CPU
        it raises NonFinite at once. The host never waits for an accelerator here; `read` raises.

        If memory runs out on a rank, `pieces` is doubled on all of them and the passes are run again, which gives the
        same update except for rounding. Raises OutOfMemory if a micro-batch cannot be divided any further.
        """
        passes, pieces = self.passes, self.pieces
        if shares is None:
            shares = passes.shares(part, divided(micro_batches, pieces), epoch)
        counts, stop = passes.count(shares, stop)
        scale: Scale = self._scale(counts)
        # Only the backward pass sees the loss scale: `totals` are sums of the terms without any factor.
        loss_scale = self.precision.loss_scale(self.device)
        if loss_scale is not None:
            scale = {name: factor * loss_scale for name, factor in scale.items()}

        # Forward and backward. Before the update only gradients change, so the passes can be run again. With a loss
        # scale, an overflow becomes NaN in the backward pass of a healthy run.
        detects = self.detect_anomaly and (loss_scale is None or not self.precision.may_skip(loss_scale))
        with detecting(number) if detects else nullcontext():
            while (totals := passes.run(shares, scale, number)) is None:
                self.pieces = more_pieces(micro_batches, self.pieces, self.ranks, self.task, number)
                if self.compiled is not None:
                    # Filled up to the shapes of whole micro-batches, pieces would take as much memory.
                    self.compiled.trained = Shapes()
                shares = passes.shares(part, divided(micro_batches, self.pieces), epoch)

        self.phases.begin("optimizer")
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        gnorm = torch.nn.utils.get_total_norm(gradients)
        if loss_scale is not None:
            # Clipping and train.tsv use the norm of the gradient of the loss itself.
            gnorm = gnorm / loss_scale
        numbers, arrived = self._to_host(totals, gnorm, loss_scale)
        step = Step(number, part, micro_batches, epoch, scale, counts, stop, numbers, arrived)
        # Raises before anything is updated.
        if not self.is_asynchronous:
            self.read(step)
        if inspector is not None:
            inspector.before_update(loss_scale)
        # A larger norm is reduced to clip_norm; the small constant keeps the result below it.
        divisor = ((gnorm + 1e-6) / self.clip_norm).clamp(min=1.0) if self.clip_norm else torch.ones_like(gnorm)
        # One test on the device for all numbers: infinity and NaN survive the additions. They are equal on all ranks,
        # so all decide alike.
        is_finite = torch.isfinite(totals.sum() + gnorm)
        ends = ~is_finite if loss_scale is None else ~is_finite & ~self.precision.may_skip(loss_scale)
        if self.max_loss is not None:
            factors = self._scale(counts).values()
            loss = torch.stack([total * factor for total, factor in zip(totals, factors, strict=True)]).sum()
            ends |= is_finite & (loss > self.max_loss)
        self._update(gradients, divisor.float(), is_finite, ends, loss_scale, number)
        if inspector is not None:
            inspector.after_update()
        self.phases.begin("other")
        return step

    def read(self, step: Step) -> StepResult:
        """Wait for the numbers of a step. All ranks must call it.

        Raises NonFinite, with nothing updated, if the loss or the gradient is not finite or the loss is above
        `max_loss`.
        """
        # The pinned copy is complete only after this event. Until here the host ran ahead of the device.
        if step.arrived is not None:
            step.arrived.synchronize()
        numbers = step.numbers.tolist()
        sums, gnorm = dict(zip(step.counts, numbers, strict=False)), numbers[len(step.counts)]
        loss_scale = numbers[-1] if len(numbers) > len(sums) + 1 else None
        loss = sum(factor * sums[name] for name, factor in self._scale(step.counts).items())
        is_finite = math.isfinite(loss) and math.isfinite(gnorm)
        skipped = not is_finite and loss_scale is not None and bool(self.precision.may_skip(loss_scale))
        is_above = is_finite and self.max_loss is not None and loss > self.max_loss
        if is_above or not (is_finite or skipped):
            # The loss first: if it is not finite, neither is its gradient.
            what, value = ("loss", loss) if is_above or not math.isfinite(loss) else ("gradient norm", gnorm)
            raise nonfinite.explain(
                self, step.part, step.micro_batches, step.number, step.epoch, step.scale, what, value, loss_scale
            )
        is_clipped = not skipped and 0 < self.clip_norm < gnorm
        return StepResult(step.number, sums, step.counts, loss, gnorm, is_clipped, loss_scale, skipped)

    def _scale(self, counts: dict[str, int]) -> dict[str, float]:
        """Return the factor of the sum of each term over so many rows."""
        return {name: self.weights[name] / max(1, count) for name, count in counts.items()}

    def _to_host(
        self, totals: Tensor, gnorm: Tensor, loss_scale: Tensor | None
    ) -> tuple[Tensor, torch.cuda.Event | None]:
        """Return the numbers of a step on the host, and on an accelerator the event after which they are there."""
        numbers = torch.cat([totals, gnorm.view(1)] + ([] if loss_scale is None else [loss_scale.view(1)]))
        if not self.is_asynchronous:
            return numbers, None
        # Only a copy into pinned memory does not block the host.
        numbers = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return numbers, arrived

    @torch.no_grad()
    def _update(
        self, gradients: list[Tensor], divisor: Tensor, is_finite: Tensor, ends: Tensor, loss_scale: Tensor | None,
        number: int,
    ) -> None:  # fmt: skip
        """Update the weights and their average, unless the step is not finite; choose the next loss scale.

        `ends`: whether the step ends the run; on an accelerator, of which the host learns one step late, all later
        steps are skipped then.
        """
        self.begun, skipped = number, None
        if self.is_asynchronous:
            self._failed = torch.maximum(self._failed, ends.float())
            skipped = torch.maximum(self._failed, (~is_finite).float())
        if skipped is not None or is_finite:
            update(self.optimizer, gradients, divisor if loss_scale is None else divisor * loss_scale, skipped)
            if self.average is not None:
                follow(self.average, self.model, self.ema_decay, number, skipped)
        if loss_scale is not None:
            self.precision.update(is_finite)
