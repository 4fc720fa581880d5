"""A step that was handed to the device, and its numbers once they have arrived."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nlu.data.examples import Examples
from nlu.methods.method import Scale


@dataclass
class Step:
    """A step that was handed to the device; on an accelerator its numbers arrive later."""

    number: int
    """from 1"""
    part: Examples
    micro_batches: list[np.ndarray]
    """the examples of this rank"""
    epoch: int
    scale: Scale
    """the factor of the sum of each term, for the gradients of this rank"""
    counts: dict[str, int]
    """the rows of each term in the step, over all ranks"""
    stop: bool
    """whether any rank was asked to stop"""
    numbers: Tensor
    """on the host: the sum of each term, the norm of the gradient and, if there is one, the loss scale"""
    arrived: torch.cuda.Event | None


@dataclass
class StepResult:
    """The numbers of one step, over all ranks."""

    number: int
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
