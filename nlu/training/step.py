"""One optimizer step: count, forward and backward over its micro-batches, sum over ranks, check, clip, update.

The loss of a step is the sum over its terms of weight * sum / count, both over all of its rows. The counts are known
before the first forward pass, so accumulation, uneven ranks and a short last batch weigh every row alike, and nothing
is divided afterwards.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.seeds import stable_seed
from nlu.methods.method import Method
from nlu.models.task_model import TaskModel
from nlu.optim.adamw import update
from nlu.optim.optimizer import named_parameters
from nlu.tasks.task import Task
from nlu.training.parallel import Parallel
from nlu.training.precision import Precision
from nlu.training.saving import TrainedParts

SHOWN_ROWS = 8


@dataclass
class StepResult:
    """What one step did, over all ranks."""

    number: int
    """of the step, counted from 1"""
    sums: dict[str, float]
    """of each term"""
    counts: dict[str, int]
    loss: float
    gnorm: float
    """norm of the gradient before clipping"""
    clipped: bool


@dataclass
class PendingStep:
    """A step that was handed to the device; on an accelerator its numbers arrive later."""

    number: int
    culprits: Callable[[], str]
    """names the rows whose loss or gradient is not finite; all ranks must ask, and all get the same answer"""
    clip_norm: float
    counts: dict[str, int]
    scale: dict[str, float]
    stop: bool
    """whether any rank was asked to stop"""
    numbers: Tensor
    """on the host: the sum of each term, then the gradient norm"""
    arrived: torch.cuda.Event | None

    def result(self) -> StepResult:
        """Wait for the numbers. Raises UserError where the loss or the gradient is not finite: nothing was updated."""
        if self.arrived is not None:
            self.arrived.synchronize()
        *values, gnorm = self.numbers.tolist()
        sums = dict(zip(self.counts, values, strict=True))
        loss = sum(self.scale[name] * value for name, value in sums.items())
        self._require_finite("loss", loss)
        self._require_finite("gradient norm", gnorm)
        return StepResult(self.number, sums, self.counts, loss, gnorm, 0 < self.clip_norm < gnorm)

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        raise UserError(
            f"the {what} is {value} at step {self.number}, {self.culprits()}; nothing was updated, "
            "and what was saved before stands; lower optimizer.lr, lengthen scheduler.warmup or set "
            "trainer.clip_norm; with precision=bf16 try fp32"
        )


@dataclass
class Stepper:
    """Everything a step needs that does not change from step to step."""

    model: TaskModel
    optimizer: torch.optim.Optimizer
    task: Task
    method: Method
    precision: Precision
    parallel: Parallel
    seed: int
    clip_norm: float
    average: dict[str, Tensor] | None
    """moving average of the weights, by parameter"""
    ema_decay: float
    own: nn.Module | None = None
    """what the method trains beside the model"""

    def __post_init__(self) -> None:
        self.ranks = self.parallel.ranks
        self.device = self.ranks.device
        self.weights = self.method.weights(self.task)
        """of all terms of the loss; the same on a rank that has no rows"""
        named = named_parameters(self.model, self.own)
        self.trained = [parameter for _, parameter in named if parameter.requires_grad]
        self._of_model = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self.is_asynchronous = self.device.type == "cuda"
        self._failed = torch.zeros((), device=self.device) if self.is_asynchronous else None

    def step(
        self, part: Examples, micro_batches: list[np.ndarray], number: int, stop: bool, epoch: int = 0
    ) -> PendingStep:
        """Do step `number`, counted from 1, over this rank's share of each micro-batch.

        Nothing is updated where the loss or the gradient is not finite, nor from then on. The host never waits for an
        accelerator here; on a CPU a UserError is raised at once.
        """
        self.optimizer.zero_grad(set_to_none=True)
        batches = [
            collate(part, examples_B, (self.seed, epoch)) if len(examples_B) else None for examples_B in micro_batches
        ]
        counts, stop = self._count(batches, stop)
        scale = {name: self.weights[name] / max(1, count) for name, count in counts.items()}
        totals = torch.zeros(len(counts), dtype=torch.float64, device=self.device)
        for micro, batch in enumerate(batches):
            if batch is not None:
                totals += self._backward(batch, scale, number, micro)
        totals = self.parallel.reduce(self.trained, totals)
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        gnorm = self.parallel.norm(gradients)
        pending = self._pending(
            number, counts, scale, stop, torch.cat([totals, gnorm.view(1)]),
            lambda: self._culprits(part, micro_batches, scale, number, epoch),
        )  # fmt: skip
        if not self.is_asynchronous:
            pending.result()
        # The norm comes down to clip_norm where it is larger; the small number keeps a clipped one below.
        divisor = ((gnorm + 1e-6) / self.clip_norm).clamp(min=1.0) if self.clip_norm else torch.ones_like(gnorm)
        self._update(gradients, divisor.float(), torch.isfinite(totals.sum() + gnorm))
        self._update_average(number)
        return pending

    def _count(self, batches: list[Batch | None], stop: bool) -> tuple[dict[str, int], bool]:
        """Return the rows of each term in the whole step, over all ranks, and whether any rank is asked to stop."""
        own: dict[str, int] = {}
        for batch in batches:
            if batch is not None:
                for name, count in self.method.counts(self.task, batch).items():
                    own[name] = own.get(name, 0) + count
        *totals, stops = self.ranks.sum_on_host([*(float(own.get(name, 0)) for name in self.weights), float(stop)])
        return {name: int(total) for name, total in zip(self.weights, totals, strict=True)}, stops > 0

    @property
    def trained_weights(self) -> list[nn.Parameter]:
        """The parameters of the model that are trained."""
        return list(self._of_model.values())

    @property
    def saved(self) -> TrainedParts:
        """What of this step's parts a checkpoint holds."""
        return TrainedParts(self.parallel, self.model, self.optimizer, self.average, self.own)

    def _backward(self, batch: Batch, scale: dict[str, float], number: int, micro: int) -> Tensor:
        device = self.device
        torch.manual_seed(stable_seed(self.seed, "dropout", self.ranks.rank, number, micro))
        sums = self.method.backward(
            self.task, self.model, batch.to(device), scale, lambda: self.precision.autocast(device)
        )
        return torch.stack([sums[name].double() for name in scale])

    def _pending(
        self, number: int, counts: dict[str, int], scale: dict[str, float], stop: bool, numbers: Tensor,
        culprits: Callable[[], str],
    ) -> PendingStep:  # fmt: skip
        arrived = None
        if self.is_asynchronous:
            numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        return PendingStep(number, culprits, self.clip_norm, counts, scale, stop, numbers, arrived)

    def _culprits(
        self, part: Examples, micro_batches: list[np.ndarray], scale: dict[str, float], number: int, epoch: int
    ) -> str:
        """Name the rows of all ranks whose loss or gradient is not finite, as numbered in their file.

        Nothing was updated, so the step is done again: micro-batch by micro-batch, and each row by itself where one is
        not finite. Where only the sum is not, all rows are named.
        """
        own: list[int] = []
        for micro, examples_B in enumerate(micro_batches):
            if not self._is_finite(part, examples_B, scale, number, micro, epoch):
                alone = [
                    example for example in examples_B.tolist()
                    if not self._is_finite(part, np.array([example]), scale, number, micro, epoch)
                ]  # fmt: skip
                own += alone or examples_B.tolist()
        numbers_N = part.stored.number_N[part.rows_N]
        found, all_rows = numbers_N[own].tolist(), numbers_N[np.concatenate(micro_batches)].tolist()
        told = self.ranks.gather_to_first((found, all_rows))
        name = _named(*(sum(rows, []) for rows in zip(*told, strict=True))) if told else ""
        return f"{self.ranks.from_first(name)} of {part.name}"

    def _is_finite(
        self, part: Examples, examples_B: np.ndarray, scale: dict[str, float], number: int, micro: int, epoch: int
    ) -> bool:
        """Whether these examples of a micro-batch give a finite loss and a finite gradient."""
        if not len(examples_B):
            return True
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._backward(collate(part, examples_B, (self.seed, epoch)), scale, number, micro)
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        return bool(torch.isfinite(sums.sum() + torch.nn.utils.get_total_norm(gradients)))

    @torch.no_grad()
    def _update(self, gradients: list[Tensor], divisor: Tensor, is_finite: Tensor) -> None:
        if self._failed is not None:
            # Once a step has failed all later ones do, since the host may hear of it one step late.
            self._failed = torch.maximum(self._failed, (~is_finite).float())
        update(self.optimizer, gradients, divisor, self._failed)
        # Fused kernels do not say that they changed a weight, and its kept copies in lower precision must follow.
        torch.autograd.graph.increment_version(self.trained)

    @torch.no_grad()
    def _update_average(self, number: int) -> None:
        if self.average is not None:
            shadow = [self.average[name] for name in self._of_model]
            # A young average would be mostly initial weights; the decay grows to its value over the first steps.
            decay = min(self.ema_decay, (1 + number) / (10 + number))
            torch._foreach_lerp_(shadow, [parameter.data for parameter in self._of_model.values()], 1 - decay)


def _named(found: list[int], all_rows: list[int]) -> str:
    """Return how to call the rows that were found among all rows of a step; without any, all of them."""
    rows = sorted(found or all_rows)
    if len(rows) == len(all_rows) > SHOWN_ROWS:
        return f"all {len(rows):,} rows"
    more = f" and {len(rows) - SHOWN_ROWS:,} more" if len(rows) > SHOWN_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN_ROWS]))}{more}"
