"""A step whose numbers an accelerator still computes, and its result."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.data.examples import Examples
from nlu.methods.method import Scale


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
    error: Callable[[str, float, float | None], UserError]
    """returns the error of a step with such a loss or gradient norm, at a loss scale"""
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

    def result(self) -> StepResult:
        """Wait for the numbers.

        Raises the error of `nlu.training.nonfinite`, with nothing updated, if the loss or the gradient is not finite,
        or the loss above `trainer.max_loss`. All ranks must call it.
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
        is_finite = math.isfinite(loss) and math.isfinite(gnorm)
        skipped = not is_finite and loss_scale is not None and self.may_skip(loss_scale)
        if is_above or not is_finite and not skipped:
            # The loss first: if it is not finite, neither is its gradient.
            what, value = ("gradient norm", gnorm) if math.isfinite(loss) and not is_above else ("loss", loss)
            raise self.error(what, value, loss_scale)
        is_clipped = not skipped and 0 < self.clip_norm < gnorm
        return StepResult(self.number, sums, self.counts, loss, gnorm, is_clipped, loss_scale, skipped)


def explained(
    stepper: Any, part: Examples, micro_batches: list[np.ndarray], number: int, epoch: int, scale: Scale,
    what: str, value: float, loss_scale: float | None,
) -> UserError:  # fmt: skip
    """Return the error of a failed step; the search for its reason is imported only here."""
    from nlu.training import nonfinite

    return nonfinite.explain(stepper, part, micro_batches, number, epoch, scale, what, value, loss_scale)
