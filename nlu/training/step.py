"""One optimizer step: count, forward and backward over its micro-batches, sum over ranks, check, clip, update.

The loss of a step is the sum of weight * sum / count over its terms, where sum and count cover all rows of the step.
The counts are known before the first forward pass, so every row has the same weight with accumulation, uneven ranks and
a short last batch, and nothing is divided afterwards.
"""

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import OutOfMemory
from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.seeds import stable_seed
from nlu.methods.method import Method, Scale
from nlu.models.layers.noise import Noise, drawing_from
from nlu.models.task_model import TaskModel
from nlu.optim.adamw import update
from nlu.optim.optimizer import named_parameters
from nlu.runs import summary
from nlu.tasks.task import Task, comparing_loss
from nlu.training.memory import REMEDY, divided, refused, release, tried
from nlu.training.parallel import Parallel
from nlu.training.pending import PendingStep
from nlu.training.precision import NumberFormat
from nlu.training.saving import TrainedParts

log = logging.getLogger(__name__)

SHOWN_ROWS = 8


@dataclass(frozen=True)
class Share:
    """The part of a micro-batch that a rank computes."""

    batch: Batch
    is_own: bool
    """False for the placeholder of a rank without rows in the micro-batch, which must contribute nothing"""


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

    def __post_init__(self) -> None:
        self.ranks = self.parallel.ranks
        self.device = self.ranks.device
        self.weights = self.method.weights(self.task)
        """the weights of all terms of the loss, equal on all ranks, also on one without rows"""
        named = named_parameters(self.model, self.own)
        self.trained = [parameter for _, parameter in named if parameter.requires_grad]
        self._of_model = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self.is_asynchronous = self.device.type == "cuda"
        self._failed = torch.zeros((), device=self.device) if self.is_asynchronous else None

    def step(
        self, part: Examples, micro_batches: list[np.ndarray], number: int, stop: bool, epoch: int = 0
    ) -> PendingStep:
        """Do step `number`, from 1, over this rank's share of each micro-batch.

        If the loss or the gradient is not finite, or the loss is above `max_loss`, nothing is updated. With a precision
        that scales the loss, a step that is not finite is skipped; otherwise nothing is updated from then on. The host
        never waits for an accelerator here; on a CPU, a UserError is raised at once.

        If memory runs out on a rank, `pieces` is doubled on all of them and the passes are run again, which gives the
        same update but for rounding. Raises OutOfMemory if a micro-batch cannot be divided any further.
        """
        shares = self._shares(part, divided(micro_batches, self.pieces), epoch)
        counts, stop = self._count(shares, stop)
        scale = {name: self.weights[name] / max(1, count) for name, count in counts.items()}
        loss_scale = self.precision.loss_scale(self.device)
        # Only the backward pass sees the loss scale: `totals` are sums of the terms without any factor, so the reported
        # loss uses `scale`.
        used: Scale = scale if loss_scale is None else {name: value * loss_scale for name, value in scale.items()}
        # Before the update only gradients change, so the passes can be run again.
        while (own := self._run_if_it_fits(shares, used, number)) is None:
            self._divide(micro_batches, number)
            shares = self._shares(part, divided(micro_batches, self.pieces), epoch)
        with refused(f"memory ran out in step {number}, where gradients are summed over ranks"):
            totals = self.parallel.reduce(self.trained, own)
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        gnorm = self.parallel.norm(gradients)
        if loss_scale is not None:
            # Clipping and train.tsv use the norm of the gradient of the loss itself.
            gnorm = gnorm / loss_scale
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
            # In the same pieces, for which memory is enough.
            lambda: self._culprits(part, divided(micro_batches, self.pieces), used, number, epoch),
        )
        # Raises before anything is updated.
        if not self.is_asynchronous:
            pending.result()
        # A larger norm is reduced to clip_norm; the small constant keeps the result below it.
        divisor = ((gnorm + 1e-6) / self.clip_norm).clamp(min=1.0) if self.clip_norm else torch.ones_like(gnorm)
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
        return pending

    def _is_above(self, max_loss: float, totals: Tensor, scale: dict[str, float]) -> Tensor:
        """Return whether the loss is finite and above `max_loss`; on an accelerator, all later steps then fail."""
        loss = totals.new_zeros(())
        for total, factor in zip(totals, scale.values(), strict=True):
            loss = loss + total * factor
        is_above = torch.isfinite(loss) & (loss > max_loss)
        if self._failed is not None:
            self._failed = torch.maximum(self._failed, is_above.float())
        return is_above

    def run(self, part: Examples, micro_batches: list[np.ndarray], scale: Scale, number: int, epoch: int = 0) -> Tensor:
        """Compute the gradients of this rank's rows from zero, and return the sum of each term over them.

        Nothing else changes, so it can be called again with the same rows in other micro-batches, as long as all ranks
        have the same number of micro-batches. `scale` is that of the whole step.
        """
        return self._run(self._shares(part, micro_batches, epoch), scale, number)

    def _run(self, shares: list[Share | None], scale: Scale, number: int) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        # float64, so that the reported sum hardly depends on the division into micro-batches.
        totals = torch.zeros(len(self.weights), dtype=torch.float64, device=self.device)
        for micro, share in enumerate(shares):
            if share is not None:
                totals += self._backward(share, scale, number, micro)
        return totals

    def _run_if_it_fits(self, shares: list[Share | None], scale: Scale, number: int) -> Tensor | None:
        """Return the sum of each term over this rank's rows, or None on all ranks if memory ran out on any of them."""
        if not self.parallel.passes_are_local:
            return self._run(shares, scale, number)
        forget = summary.mark()
        totals = tried(lambda: self._run(shares, scale, number))
        if self.ranks.sum_on_host([float(totals is None)])[0]:
            self.optimizer.zero_grad(set_to_none=True)
            # What these passes have recorded is recorded again.
            forget()
            return None
        return totals

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
                f"set trainer.batch_size lower; or {REMEDY}"
            )
        if before == 1:
            raise OutOfMemory(f"{said}, which cannot be divided; {REMEDY}")
        self.pieces *= 2
        log.warning(
            "%s; from here on it is computed in parts of %d, which changes the update by no more than rounding",
            said,
            -(-largest // self.pieces),
        )

    def _shares(self, part: Examples, micro_batches: list[np.ndarray], epoch: int) -> list[Share | None]:
        """Gather this rank's rows of each micro-batch.

        With several ranks, a rank without rows gets another row as a placeholder: every rank must run every pass, since
        a strategy may communicate within it. A single process skips an empty micro-batch.
        """
        # Any row does as a placeholder; without a row in the whole step, it is the first one of the set.
        own = next((examples_B for examples_B in micro_batches if len(examples_B)), np.zeros(1, np.int64))
        shares: list[Share | None] = []
        for examples_B in micro_batches:
            if len(examples_B):
                shares.append(Share(collate(part, examples_B, (self.seed, epoch)), is_own=True))
            elif self.ranks.world_size > 1:
                # Every rank has the same list of micro-batches, so the passes of all ranks correspond to one another.
                shares.append(Share(collate(part, own[:1], (self.seed, epoch)), is_own=False))
            else:
                shares.append(None)
        return shares

    def _count(self, shares: list[Share | None], stop: bool) -> tuple[dict[str, int], bool]:
        """Return the number of rows of each term in the step over all ranks, and whether any rank is asked to stop."""
        own: dict[str, int] = {}
        for share in shares:
            if share is not None and share.is_own:
                for name, count in self.method.counts(self.task, share.batch).items():
                    own[name] = own.get(name, 0) + count
        # One message carries the counts and the request to stop. So all ranks stop after the same step, no matter
        # which of them got the signal. Counts are exact in float64.
        *totals, stops = self.ranks.sum_on_host([*(float(own.get(name, 0)) for name in self.weights), float(stop)])
        return {name: int(total) for name, total in zip(self.weights, totals, strict=True)}, stops > 0

    @property
    def trained_weights(self) -> list[nn.Parameter]:
        """The trained parameters of the model."""
        return list(self._of_model.values())

    @property
    def saved(self) -> TrainedParts:
        """The parts of the step that a checkpoint contains."""
        return TrainedParts(self.parallel, self.model, self.optimizer, self.average, self.own)

    def _backward(self, share: Share, scale: Scale, number: int, micro: int) -> Tensor:
        """Add the gradient of a micro-batch and return the sums of the terms, 0 for a placeholder."""
        device = self.device
        # On a CPU, our layers draw random numbers from a stream for each example. Code that uses torch's generator,
        # such as kernels of an accelerator, depends on the micro-batch.
        torch.manual_seed(stable_seed(self.seed, "dropout", self.ranks.rank, number, micro))
        streams = Noise(self.seed, number, share.batch) if device.type == "cpu" else None
        # A pass with factors of 0 instead of no pass, so that all ranks enter the same collectives.
        used = scale if share.is_own else dict.fromkeys(scale, 0.0)
        # What the model records about a placeholder must not reach scalars.tsv.
        with drawing_from(streams), nullcontext() if share.is_own else summary.unheard():
            sums = self.method.backward(
                self.task, self.model, share.batch.to(device), used, lambda: self.precision.autocast(device)
            )
        values = torch.stack([sums[name].double() for name in scale])
        return values if share.is_own else torch.zeros_like(values)

    def _pending(
        self,
        number: int,
        counts: dict[str, int],
        scale: dict[str, float],
        stop: bool,
        numbers: Tensor,
        culprits: Callable[[], str],
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
            culprits,
            self.clip_norm,
            counts,
            scale,
            stop,
            lambda at: bool(may_skip(at)),
            self.max_loss,
            numbers,
            arrived,
        )

    def _culprits(self, part: Examples, micro_batches: list[np.ndarray], scale: Scale, number: int, epoch: int) -> str:
        """Return the rows of all ranks whose loss or gradient is not finite, by their numbers in the file.

        Nothing was updated, so the step is repeated by micro-batches, and by single rows for a micro-batch that is not
        finite. If only the sum is not finite, all rows are named. All ranks run the same number of passes.
        """
        ranks = self.ranks
        own: list[int] = []
        for micro, examples_B in enumerate(micro_batches):
            is_bad = not self._is_finite(part, examples_B, scale, number, micro, epoch)
            rows, bad = ranks.sum_on_host([float(len(examples_B)), float(is_bad)])
            # Decided by all ranks together, since the repeated passes below may communicate.
            if not bad:
                continue
            # The rows of a micro-batch are distributed to the ranks in turn, so no rank has more rows than this.
            most = math.ceil(rows / ranks.world_size)
            single = [
                examples_B[place]
                for place in range(most)
                if not self._is_finite(part, examples_B[place : place + 1], scale, number, micro, epoch)
            ]
            if is_bad:
                own += single or examples_B.tolist()
        found, all_rows = (
            part.stored.scalars("number", part.rows_N[np.asarray(rows, np.int64)]).tolist()
            for rows in (own, np.concatenate(micro_batches))
        )
        gathered = ranks.gather_to_first((found, all_rows))
        name = _named(*(sum(rows, []) for rows in zip(*gathered, strict=True))) if gathered else ""
        return f"{ranks.from_first(name)} of {part.name}"

    def _is_finite(
        self, part: Examples, examples_B: np.ndarray, scale: Scale, number: int, micro: int, epoch: int
    ) -> bool:
        """Whether these examples of a micro-batch give a finite loss and gradient; True without examples."""
        # A rank that has run out of rows repeats a placeholder, to stay in step with the others.
        (share,) = self._shares(part, [examples_B], epoch)
        if share is None:
            return True
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._backward(share, scale, number, micro)
        gradients = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        return not share.is_own or bool(torch.isfinite(sums.sum() + torch.nn.utils.get_total_norm(gradients)))

    @torch.no_grad()
    def _update(self, gradients: list[Tensor], divisor: Tensor, is_finite: Tensor) -> None:
        if self._failed is not None:
            # After a failed step all later ones fail too, since the host learns of it one step late.
            self._failed = torch.maximum(self._failed, (~is_finite).float())
        update(self.optimizer, gradients, divisor, self._failed)
        # Fused kernels do not mark weights as changed, but cached copies in lower precision must be renewed.
        torch.autograd.graph.increment_version(self.trained)

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
        update(self.optimizer, gradients, divisor, skipped)
        torch.autograd.graph.increment_version(self.trained)
        self._update_average(number, 1 - skipped)

    @torch.no_grad()
    def _update_average(self, number: int, share: Tensor | None = None) -> None:
        """Move the average towards the weights; `share` is a factor on the device, 0 for a skipped step."""
        if self.average is not None:
            # The average follows the trained parameters only; frozen ones and buffers are the same in both.
            shadow = [self.average[name] for name in self._of_model]
            # The decay grows over the first steps; otherwise the average would long consist of the initial weights.
            decay = min(self.ema_decay, (1 + number) / (10 + number))
            weights = [parameter.data for parameter in self._of_model.values()]
            if share is None:
                torch._foreach_lerp_(shadow, weights, 1 - decay)
            else:
                torch._foreach_lerp_(shadow, weights, [(1 - decay) * share] * len(shadow))


def _named(found: list[int], all_rows: list[int]) -> str:
    """Return the found rows among all rows of a step, in words; all rows if none was found."""
    rows = sorted(found or all_rows)
    if len(rows) == len(all_rows) > SHOWN_ROWS:
        return f"all {len(rows):,} rows"
    more = f" and {len(rows) - SHOWN_ROWS:,} more" if len(rows) > SHOWN_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN_ROWS]))}{more}"
