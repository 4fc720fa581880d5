"""AdamW by a kernel in C, with the moving average and bf16 copies of the weights, in one pass over memory.

torch needs a pass for each. The update is that of torch's fused kernel on processors with AVX-512, operation by
operation; torch computes the numbers after the last 16 of a tensor with another rounding, the kernel does not.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from nlu.models.layers.compiled.calls import address
from nlu.models.layers.compiled.library import load

STRETCH = np.dtype(
    [("start", np.int64), ("end", np.int64), ("copy", np.uint64), ("settings", np.int32), ("rests", np.int32)]
)
"""numbers of the lines, the address of the bf16 copy of the first one (0: none), the number of their settings (-1: the
weights are not updated), and whether gradient and moments are 0 and stay so"""
_SETTINGS = np.dtype([(name, np.float32) for name in ("decay", "first", "second", "rest", "step", "deviation", "eps")])


@cache
def _library() -> ctypes.CDLL:
    return load("adamw")


def require_kernel() -> None:
    """Build the kernel. Raises UserError if this machine cannot. The caller has asked whether the processor has AVX-512
    and its bf16 (`nlu.models.layers.compiled.training_kernels.require_kernels`)."""
    _library()


class _Lines(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "gradients", "first", "second", "average")),
        ("divisor", ctypes.c_float), ("amount", ctypes.c_float),
    ]  # fmt: skip


def update_in_one_pass(
    lines: Sequence[Tensor],
    average: Tensor | None,
    stretches: np.ndarray,
    groups: Sequence[tuple[Mapping[str, Any], float]],
    divisor: float,
    amount: float,
) -> None:
    """Run AdamW on stretches of four contiguous float32 tensors: weights, gradients and both moments.

    `stretches` are of STRETCH. `groups`: for each number of settings the group of the optimizer, and the number of
    updates with this one. Gradients are divided by `divisor`, but not in place. Then the average, if any, moves towards
    the weights by `amount`, a share of the distance.
    """
    settings = np.array([_settings(group, step) for group, step in groups], _SETTINGS)
    of_average = None if average is None else address(average)
    call = _Lines(*map(address, lines), of_average, divisor, amount)
    assert stretches.dtype == STRETCH and stretches.flags.c_contiguous, "they are read in C"
    _library().nlu_adamw(
        ctypes.byref(call), ctypes.c_void_p(stretches.ctypes.data), ctypes.c_int64(len(stretches)),
        ctypes.c_void_p(settings.ctypes.data),
    )  # fmt: skip


def _settings(group: Mapping[str, Any], step: float) -> tuple[float, ...]:
    """Return the numbers of _SETTINGS, computed in float64."""
    beta1, beta2 = group["betas"]
    decay = 1 - group["lr"] * group["weight_decay"]
    rate = -group["lr"] / (1 - beta1**step)
    return decay, 1 - beta1, beta2, 1 - beta2, rate, (1 - beta2**step) ** 0.5, group["eps"]
