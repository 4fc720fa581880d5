"""fp16 by autocast with a dynamic loss scale (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2).

fp16 has 5 bits for the exponent, so gradients below 6e-8 become 0. The scale moves them into its range; it follows the
rule of torch.amp.GradScaler.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.training import keys as schemas
from nlu.training.precision import instruction_sets

GROWTH, BACKOFF = 2.0, 0.5
_FAST = ("avx512_fp16", "amx_fp16", "asimdhp")
"""instruction sets with fp16 products, as /proc/cpuinfo names them; the last one is Arm's"""


@takes(schemas.Fp16)
class Fp16:
    """Matrix products in fp16; weights, gradients and the optimizer's state stay fp32."""

    def __init__(self, keys: schemas.Fp16):
        self.init_scale, self.growth_interval, self.min_scale = keys.init_scale, keys.growth_interval, keys.min_scale
        self._scale, self._good_steps = torch.tensor(self.init_scale, dtype=torch.float32), torch.tensor(0)
        """the scale, and the steps since it changed or began"""

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        return torch.autocast(device.type, dtype=torch.float16)

    def warning(self, device: torch.device) -> str | None:
        """Return a warning if the device does not support fp16 products, which are then much slower than fp32."""
        if device.type != "cpu" or any(name in instruction_sets() for name in _FAST):
            return None
        return "this CPU lacks fp16 matrix products and does them many times slower than fp32; choose precision=fp32"

    def loss_scale(self, device: torch.device) -> Tensor:
        self._scale, self._good_steps = self._scale.to(device), self._good_steps.to(device)
        return self._scale

    def update(self, is_finite: Tensor) -> None:
        """Halve the scale after an overflow, and double it after `growth_interval` steps without one."""
        good_steps = torch.where(is_finite, self._good_steps + 1, 0)
        grows = good_steps >= self.growth_interval
        larger = self._scale * GROWTH
        # float32 holds no larger power of two than 2^127.
        grown = torch.where(grows & torch.isfinite(larger), larger, self._scale)
        self._scale = torch.where(is_finite, grown, self._scale * BACKOFF)
        self._good_steps = torch.where(grows, 0, good_steps)

    def may_skip(self, loss_scale: float | Tensor) -> bool | Tensor:
        return loss_scale > self.min_scale

    def state(self) -> dict[str, float]:
        return {"scale": self._scale.item(), "good_steps": self._good_steps.item()}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Continue from a result of `state`, or begin if it is that of a precision without a scale."""
        self._scale = torch.tensor(state.get("scale", self.init_scale), dtype=torch.float32)
        self._good_steps = torch.tensor(int(state.get("good_steps", 0)))
