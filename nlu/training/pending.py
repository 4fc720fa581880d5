"""A step whose numbers an accelerator still computes, and its result."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.training.nonfinite import NonFinite, Search


class LossScale(NamedTuple):
    """The loss scale of a step, and whether its update was skipped."""

    step: int
    loss_scale: float
    skipped: bool


@dataclass
class StepResult:
    """The result of one step, over all ranks."""

    number: int
    """the number of the step, from 1"""
    sums: dict[str, float]
    """the sum of each term"""
    counts: dict[str, int]
    loss: float
    gnorm: float
    """the norm of the gradient before clipping, without the loss scale"""
    clipped: bool
    loss_scale: float | None = None
    """the loss scale, if the precision has one"""
    skipped: bool = False
    """whether the gradient overflowed, so that nothing was updated"""


@dataclass
class PendingStep:
    """A step that was handed to the device; on an accelerator its numbers arrive later."""

    number: int
    search: Search
    """finds the rows whose loss or gradient is not finite"""
    clip_norm: float
    counts: dict[str, int]
    scale: dict[str, float]
    """the factor of each term, without the loss scale"""
    stop: bool
    """whether any rank was asked to stop"""
    may_skip: Callable[[float], bool]
    """whether a step that overflowed at a loss scale is skipped; otherwise it ends the run"""
    max_loss: float | None
    numbers: Tensor
    """on the host: the sum of each term, the gradient norm, whether the loss is above `max_loss` if that is set, and
    the loss scale if the precision has one"""
    arrived: torch.cuda.Event | None
    scales: deque[LossScale]
    """of the last steps, the newest last; each step of a precision that scales the loss adds its own"""

    def result(self) -> StepResult:
        """Wait for the numbers.

        Raises NonFinite, with nothing updated, if the loss or the gradient is not finite, and UserError if the loss is
        above `trainer.max_loss`. All ranks must call it.
        """
        # The pinned copy is complete only after this event. Until here the host ran ahead of the device.
        if self.arrived is not None:
            self.arrived.synchronize()
        *values, gnorm = self.numbers[: len(self.counts) + 1].tolist()
        others = self.numbers[len(self.counts) + 1 :].tolist()
        is_above = self.max_loss is not None and bool(others.pop(0))
        loss_scale = others[0] if others else None
        sums = dict(zip(self.counts, values, strict=True))
        loss = sum(self.scale[name] * value for name, value in sums.items())
        if is_above:
            raise UserError(
                f"the loss is {loss:g} at step {self.number}, {self.search.culprits().named}, above trainer.max_loss, "
                f"{self.max_loss:g}; nothing was updated, and what was saved before stands; lower optimizer.lr, "
                "lengthen scheduler.warmup, set trainer.clip_norm, or set trainer.max_loss higher"
            )
        is_finite = math.isfinite(loss) and math.isfinite(gnorm)
        skipped = not is_finite and loss_scale is not None and self.may_skip(loss_scale)
        # On a CPU the result is asked for twice: before the update, and by the loop.
        if loss_scale is not None and (not self.scales or self.scales[-1].step != self.number):
            self.scales.append(LossScale(self.number, loss_scale, skipped))
        if not is_finite and not skipped:
            # The loss first: if it is not finite, neither is its gradient.
            what, value = ("gradient norm", gnorm) if math.isfinite(loss) else ("loss", loss)
            raise self._nonfinite(what, value, loss_scale)
        is_clipped = not skipped and 0 < self.clip_norm < gnorm
        return StepResult(self.number, sums, self.counts, loss, gnorm, is_clipped, loss_scale, skipped)

    def _nonfinite(self, what: str, value: float, loss_scale: float | None) -> NonFinite:
        at = "" if loss_scale is None else f" at a loss scale of {loss_scale:g}"
        found = self.search.diagnosed()
        return NonFinite(
            f"the {what} is {value}{at} at step {self.number}, {found.named}; nothing was updated, "
            "and what was saved before stands",
            "lower optimizer.lr, lengthen scheduler.warmup or set trainer.clip_norm; with precision=bf16 or fp16 try "
            "fp32",
            {"what": what, "value": str(value), "loss_scale": loss_scale, "loss_scales": list(self.scales)},
            found,
        )
