"""One optimizer step: forward and backward over its micro-batches, sum over ranks, check, clip, update.

The gradient is the sum over all rows of the step divided by their number, so accumulation, uneven ranks and a short
last batch weigh every row alike.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.data.collate import collate
from nlu.data.seeds import stable_seed
from nlu.data.store import Examples
from nlu.losses.cross_entropy import CrossEntropy
from nlu.models.task_model import TaskModel
from nlu.training.distributed import Ranks
from nlu.training.precision import Precision


@dataclass
class StepResult:
    """What one step did, summed over all ranks."""

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
class Stepper:
    """Everything a step needs that does not change from step to step."""

    model: TaskModel
    optimizer: torch.optim.Optimizer
    loss: CrossEntropy
    precision: Precision
    ranks: Ranks
    seed: int
    clip_norm: float
    average: dict[str, Tensor] | None
    ema_decay: float

    def __post_init__(self) -> None:
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def step(self, part: Examples, micro_batches: list[np.ndarray], number: int, stop: bool) -> StepResult:
        """Do step `number`, counted from 1, over this rank's share of each micro-batch.

        Raises UserError, before anything is updated, where the loss or the gradient is not finite.
        """
        self.optimizer.zero_grad(set_to_none=True)
        own = torch.zeros(3, dtype=torch.float64)
        own[2] = float(stop)
        for micro, examples_B in enumerate(micro_batches):
            if len(examples_B):
                torch.manual_seed(stable_seed(self.seed, "dropout", self.ranks.rank, number, micro))
                total, count = self._forward(part, examples_B)
                total.backward()
                own[0] += total.item()
                own[1] += count
        loss_sum, rows, stops = self.ranks.sum_gradients(self.trained, own.to(self.ranks.device)).tolist()
        self._require_finite("loss", loss_sum, part, micro_batches, number)
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        torch._foreach_div_(gradients, max(1.0, rows))
        gnorm = torch.nn.utils.get_total_norm(gradients).item()
        self._require_finite("gradient norm", gnorm, part, micro_batches, number)
        clipped = 0 < self.clip_norm < gnorm
        if clipped:
            torch._foreach_mul_(gradients, self.clip_norm / (gnorm + 1e-6))
        self.optimizer.step()
        self._update_average(number)
        return StepResult(loss_sum, int(rows), gnorm, clipped, stops > 0)

    def _forward(self, part: Examples, examples_B: np.ndarray) -> tuple[Tensor, int]:
        batch = collate(part, examples_B, units=self.model.layout == "units").to(self.ranks.device)
        with self.precision.autocast(self.ranks.device):
            logits_NC = self.model(batch)
        return self.loss(logits_NC, batch.labels)

    def _require_finite(
        self, what: str, value: float, part: Examples, micro_batches: list[np.ndarray], number: int
    ) -> None:
        if math.isfinite(value):
            return
        rows = part.stored.number_N[part.rows_N[np.concatenate(micro_batches)]]
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        raise UserError(
            f"the {what} is {value} at step {number}, rows {shown} of {part.name}; nothing was updated, "
            "and what was saved before stands; lower optimizer.lr, lengthen scheduler.warmup or set "
            "trainer.clip_norm; with precision=bf16 try fp32"
        )

    @torch.no_grad()
    def _update_average(self, number: int) -> None:
        if self.average is not None:
            shadow = [self.average[name] for name in self._names]
            # A young average would be mostly initial weights; the decay grows to its value over the first steps.
            decay = min(self.ema_decay, (1 + number) / (10 + number))
            torch._foreach_lerp_(shadow, [parameter.data for parameter in self.trained], 1 - decay)
