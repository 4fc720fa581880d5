"""Number formats: the contract of the group `precision`, and fp32 and bf16, which need no loss scale.

Weights, gradients and the optimizer's state stay fp32. Whether a processor computes a format fast is read from its
instruction sets.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.training import keys as schemas

CPUINFO = Path("/proc/cpuinfo")

_WITHOUT_BF16 = ("NO AVX", "AVX2")
"""torch's names of the x86 instruction sets for which it lacks kernels of bf16 products"""


@cache
def instruction_sets() -> frozenset[str]:
    """Return the names of the processor's instruction sets as Linux gives them, such as avx2; empty if unknown."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    # x86 calls them flags, Arm features.
    names = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(names, []))


class NumberFormat(Protocol):
    """A choice of the group `precision`; its constructor takes its options by keyword.

    A format with few exponents multiplies the loss by a scale, so that small gradients do not vanish, and skips the
    update if gradients overflow. All of this stays on the device: the host learns of a step one step late and must not
    wait for it.
    """

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs, in training and in scoring."""

    def warning(self, device: torch.device) -> str | None:
        """Return a warning if the device is slow in this format, or None."""

    def loss_scale(self, device: torch.device) -> Tensor | None:
        """Return the factor of the loss of the next step, a float32 scalar on the device; None without scaling.

        Gradients are divided by it before they are clipped. A format has a scale at every step or at none.
        """

    def update(self, is_finite: Tensor) -> None:
        """Choose the next scale. Called after each step, on all ranks with the same argument: whether loss and gradient
        were finite. Not called without a scale."""

    def may_skip(self, loss_scale: float | Tensor) -> bool | Tensor:
        """Return whether an update that overflowed at this scale is skipped; otherwise the run ends. The argument and
        the result are numbers, or tensors on the device, such as `loss_scale > self.least`."""

    def state(self) -> dict[str, float]:
        """Return the state for `last`, such as the scale; it may wait for the device."""

    def load_state(self, state: Mapping[str, float]) -> None:
        """Continue from a result of `state`."""


@takes(schemas.Precision)
class Precision:
    """fp32 everywhere, or matrix products in bf16 by autocast."""

    def __init__(self, keys: schemas.Precision):
        self.dtype = keys.dtype

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)

    def warning(self, device: torch.device) -> str | None:
        """Return a warning if the device does not support bf16 products, which are then much slower than fp32.

        On two cores with only AVX2, a step of SimBERT-tiny takes 17 times as long as in fp32.
        """
        has_products = device.type != "cpu" or torch.backends.cpu.get_cpu_capability() not in _WITHOUT_BF16
        if self.dtype == "float32" or has_products:
            return None
        return "this CPU has no bf16 matrix products and does them many times slower than fp32; choose precision=fp32"

    def loss_scale(self, device: torch.device) -> Tensor | None:
        return None

    def update(self, is_finite: Tensor) -> None:
        """Do nothing, since this precision does not scale the loss."""

    def may_skip(self, loss_scale: float | Tensor) -> bool | Tensor:
        return False

    def state(self) -> dict[str, float]:
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Do nothing: the state is empty."""
