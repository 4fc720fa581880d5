"""NVIDIA apex's fused Adam, where a user has installed it (https://github.com/NVIDIA/apex).

The package `apex` of Python's index is another one. nlu never installs either.
"""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.optim.optimizer import FusedAdamW

KERNELS = "amp_C"
"""the module with the compiled kernels, which apex lacks if it was built without them"""


def has_kernels() -> bool:
    """Return whether NVIDIA's apex is installed with its kernels. Nothing is imported."""
    spec = importlib.util.find_spec("apex")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    is_nvidias = any((Path(folder) / "multi_tensor_apply").is_dir() for folder in folders)
    return is_nvidias and importlib.util.find_spec(KERNELS) is not None


def require_kernels(device: torch.device) -> None:
    """Raise UserError if apex's kernels cannot update parameters on this device."""
    if device.type != "cuda":
        raise UserError(f"optimizer.kernel is apex, which computes on CUDA, not on {device.type}; set it to torch")
    if not has_kernels():
        raise UserError(
            "optimizer.kernel is apex, but NVIDIA's apex is not installed here with its kernels (amp_C); set it to "
            "torch, whose kernel does the same"
        )


class ApexAdamW(FusedAdamW):
    """AdamW with apex's kernel. Its state is that of torch's, so a run can continue with either.

    The kernel takes one number of steps for all parameters of a group, that of the first one with a gradient; they only
    differ if some steps leave a parameter without a gradient.
    """

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters with a gradient, divided by `grad_scale`, unless `found_inf` is not 0. The host does
        not wait for the device."""
        applier = importlib.import_module("apex.multi_tensor_apply").multi_tensor_applier
        kernel = importlib.import_module(KERNELS).multi_tensor_adam_capturable
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if not parameters:
                continue
            device = parameters[0].device
            for each in parameters:
                if not self.state[each]:
                    self.state[each]["step"] = torch.zeros((), dtype=torch.float32, device=device)
                    self.state[each]["exp_avg"] = torch.zeros_like(each)
                    self.state[each]["exp_avg_sq"] = torch.zeros_like(each)
            states = [self.state[each] for each in parameters]
            steps, first, second = ([each[key] for each in states] for key in ("step", "exp_avg", "exp_avg_sq"))
            skipped = torch.zeros((), device=device) if self.found_inf is None else self.found_inf.clamp(max=1)
            torch._foreach_add_(steps, 1 - skipped)
            applier(
                kernel,
                skipped.to(torch.int32).view(1),
                [[each.grad for each in parameters], parameters, first, second],
                # Filled on the device: a copy from the host would wait.
                torch.full((1,), group["lr"], dtype=torch.float32, device=device),
                *group["betas"],
                group["eps"],
                steps[0].to(torch.int32).view(1),
                1,  # decoupled weight decay
                1,  # correction of the bias of both moments
                group["weight_decay"],
                self.grad_scale.reciprocal().float().view(1),
            )
