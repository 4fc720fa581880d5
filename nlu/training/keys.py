"""The keys of number formats; see `nlu.config.keys`."""

from dataclasses import dataclass
from typing import Literal

from nlu.config.types import PositiveFloat, PositiveInt


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
    """bf16, or fp16 on older GPUs, if measured to be faster than fp32; config.yaml holds the choice."""
