"""One optimizer step: forward and backward over its micro-batches, sum over ranks, check, clip, update.

The gradient is the sum over all rows of the step divided by their number, so accumulation, uneven ranks and a short
last batch weigh every row alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.data.collate import collate
from nlu.data.seeds import stable_seed
from nlu.data.store import Examples
from nlu.losses.loss import Loss
from nlu.models.task_model import TaskModel
from nlu.training.distributed import Ranks
from nlu.training.precision import Precision


@dataclass
class StepResult:
    """What one step did, summed over all ranks."""

    number: int
    """of the step, counted from 1"""
    loss_sum: float
    count: int
    gnorm: float
    """norm of the gradient before clipping"""
    clipped: bool
    stop: bool
    """whether any rank was asked to stop"""

    @property
    def loss(self) -> float:
        return self.loss_sum / max(1, self.count)


@dataclass
class Underway:
    """A step that was handed to the device; on an accelerator its numbers arrive later."""

    number: int
    rows: Callable[[], np.ndarray]
    """this rank's rows of the step, as numbered in their file"""
    set_name: str
    clip_norm: float
    numbers: Tensor
    """on the host: loss sum, rows of the loss, ranks asked to stop, gradient norm"""
    arrived: torch.cuda.Event | None

    def result(self) -> StepResult:
        """Wait for the numbers. Raises UserError where the loss or the gradient is not finite: nothing was updated."""
        if self.arrived is not None:
            self.arrived.synchronize()
        loss_sum, count, stops, gnorm = self.numbers.tolist()
        self._require_finite("loss", loss_sum)
        self._require_finite("gradient norm", gnorm)
        return StepResult(self.number, loss_sum, int(count), gnorm, 0 < self.clip_norm < gnorm, stops > 0)

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        rows = self.rows()
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        raise UserError(
            f"the {what} is {value} at step {self.number}, rows {shown} of {self.set_name}; nothing was updated, "
            "and what was saved before stands; lower optimizer.lr, lengthen scheduler.warmup or set "
            "trainer.clip_norm; with precision=bf16 try fp32"
        )


@dataclass
class Stepper:
    """Everything a step needs that does not change from step to step."""

    model: TaskModel
    optimizer: torch.optim.Optimizer
    loss: Loss
    precision: Precision
    ranks: Ranks
    seed: int
    clip_norm: float
    average: dict[str, Tensor] | None
    ema_decay: float

    def __post_init__(self) -> None:
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        self.is_asynchronous = self.ranks.device.type == "cuda"
        self._failed = torch.zeros((), device=self.ranks.device)

    def step(self, part: Examples, micro_batches: list[np.ndarray], number: int, stop: bool) -> Underway:
        """Do step `number`, counted from 1, over this rank's share of each micro-batch.

        Nothing is updated where the loss or the gradient is not finite, nor from then on. The host never waits for an
        accelerator here; on a CPU a UserError is raised at once.
        """
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, dtype=torch.float64, device=self.ranks.device)
        sums[2] += float(stop)
        for micro, examples_B in enumerate(micro_batches):
            if len(examples_B):
                torch.manual_seed(stable_seed(self.seed, "dropout", self.ranks.rank, number, micro))
                total, count = self._forward(part, examples_B)
                total.backward()
                sums[0] += total.detach()
                sums[1] += count
        sums = self.ranks.sum_gradients(self.trained, sums)
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        rows = sums[1].clamp(min=1)
        gnorm = torch.nn.utils.get_total_norm(gradients) / rows
        underway = self._underway(part, micro_batches, number, torch.cat([sums, gnorm.view(1)]))
        if not self.is_asynchronous:
            underway.result()
        divisor = rows * (gnorm + 1e-6) / self.clip_norm if self.clip_norm else rows
        self._update(gradients, torch.maximum(rows, divisor).float(), torch.isfinite(sums[0] + gnorm))
        self._update_average(number)
        return underway

    def _underway(self, part: Examples, micro_batches: list[np.ndarray], number: int, numbers: Tensor) -> Underway:
        arrived = None
        if self.is_asynchronous:
            numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()

        def rows() -> np.ndarray:
            return part.stored.number_N[part.rows_N[np.concatenate(micro_batches)]]

        return Underway(number, rows, part.name, self.clip_norm, numbers, arrived)

    def _forward(self, part: Examples, examples_B: np.ndarray) -> tuple[Tensor, int]:
        batch = collate(part, examples_B, units=self.model.layout == "units").to(self.ranks.device)
        with self.precision.autocast(self.ranks.device):
            logits_NC = self.model(batch)
        labels_N = batch.targets["labels"]
        return self.loss(logits_NC, labels_N), len(labels_N)

    @torch.no_grad()
    def _update(self, gradients: list[Tensor], divisor: Tensor, is_finite: Tensor) -> None:
        if not getattr(self.optimizer, "_step_supports_amp_scaling", False):
            torch._foreach_div_(gradients, divisor)
            if self.is_asynchronous and not is_finite:
                return
        else:
            # The fused kernel divides while it updates, which saves a pass over all gradients; on an accelerator it is
            # told there whether to leave everything as it is.
            self.optimizer.grad_scale = divisor  # type: ignore[attr-defined]
            if self.is_asynchronous:
                self._failed = torch.maximum(self._failed, (~is_finite).float())
                self.optimizer.found_inf = self._failed  # type: ignore[attr-defined]
        self.optimizer.step()
        # Fused kernels do not say that they changed a weight, and its kept copies in lower precision must follow.
        torch.autograd.graph.increment_version(self.trained)

    @torch.no_grad()
    def _update_average(self, number: int) -> None:
        if self.average is not None:
            shadow = [self.average[name] for name in self._names]
            # A young average would be mostly initial weights; the decay grows to its value over the first steps.
            decay = min(self.ema_decay, (1 + number) / (10 + number))
            torch._foreach_lerp_(shadow, [parameter.data for parameter in self.trained], 1 - decay)
