"""The keys of number formats and of strategies of several processes; see `nlu.config.keys`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from nlu.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Probability


@dataclass(kw_only=True)
class Precision:
    """Matrix products in one format; weights, gradients and the optimizer's state stay float32."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Format of matrix products, forward and backward."""


@dataclass(kw_only=True)
class Fp16:
    """Matrix products in float16, for GPUs without bf16 products, such as V100, T4 and RTX 20: docs/devices.md."""

    init_scale: PositiveFloat = 65536.0
    """Factor of the loss in the first step, so that small gradients do not become 0."""
    growth_interval: PositiveInt = 2000
    """Steps in a row without an overflow after which the scale doubles."""
    min_scale: PositiveFloat = 1.0
    """An overflow above this scale halves it and skips the step; at this scale or below, it ends the run."""


@dataclass(kw_only=True)
class Auto:
    """bf16 if the hardware computes its products, else fp16 on CUDA, else fp32; config.yaml holds the choice."""


@dataclass(kw_only=True)
class Strategy:
    """Facts of all strategies."""

    trains_apart: ClassVar[bool] = False
    """whether processes hold different weights after some steps"""


@dataclass(kw_only=True)
class Replicated(Strategy):
    """Each process holds all weights, and one message sums all gradients."""

    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Format in which gradients are summed over processes; bfloat16 sends half the bytes, and rounds each gradient and
    each sum; no effect in one process."""


@dataclass(kw_only=True)
class Bmuf(Strategy):
    """For slow networks: processes train apart and meet every few steps: docs/devices.md. No effect in one process."""

    trains_apart = True
    sync_interval: PositiveInt = 50
    """Steps of a block, after which all processes continue from the same weights; evaluations and saves wait for
    that."""
    block_momentum: Probability | None = None
    """Momentum of the update of a block; 0 = the mean of the weights; null = 1 - 1 / processes."""
    block_lr: PositiveFloat = 1.0
    """Factor of the mean update of a block."""
    nesterov: bool = False
    """Start a block where the momentum of the last ones leads; false = off."""
    warmup: NonNegativeInt = 100
    """First steps, in which gradients are summed in each step; 0 = none."""
