"""AdamW with apex's kernel. NVIDIA's package needs a device and a compiler, so a kernel in Python takes its place: the
formula of Adam, called as apex calls its own.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.optim import apex
from nlu.optim.optimizer import FusedAdamW, update

CPU = torch.device("cpu")


def adam(noop: Tensor, lists: list[list[Tensor]], *of: Any) -> None:
    """Update as amp_C.multi_tensor_adam_capturable does: decoupled decay, corrected moments, none if noop is 1."""
    lr, beta1, beta2, eps, step, is_decoupled, is_corrected, decay, inv_scale = of
    assert is_decoupled == is_corrected == 1 and all(each.numel() == 1 for each in (noop, lr, step, inv_scale))
    assert noop.dtype == step.dtype == torch.int32 and lr.dtype == inv_scale.dtype == torch.float32
    if noop.item() == 1:
        return
    for gradient, parameter, first, second in zip(*lists, strict=True):
        unscaled = (gradient * inv_scale).numpy()
        first.copy_(torch.from_numpy(beta1 * first.numpy() + (1 - beta1) * unscaled))
        second.copy_(torch.from_numpy(beta2 * second.numpy() + (1 - beta2) * unscaled**2))
        moved = first.numpy() / (1 - beta1 ** step.item())
        moved = moved / (np.sqrt(second.numpy() / (1 - beta2 ** step.item())) + eps)
        parameter.copy_(torch.from_numpy(parameter.numpy() - lr.item() * (moved + decay * parameter.numpy())))


def test_the_kernel_of_apex_makes_the_updates_of_torch_and_has_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    applier = SimpleNamespace(multi_tensor_applier=lambda kernel, noop, lists, *of: kernel(noop, lists, *of))
    monkeypatch.setitem(sys.modules, "apex", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "apex.multi_tensor_apply", applier)
    monkeypatch.setitem(sys.modules, apex.KERNELS, SimpleNamespace(multi_tensor_adam_capturable=adam))
    found = []
    for make in (apex.ApexAdamW, FusedAdamW):
        rng = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(size, generator=rng)) for size in (3, 5, 4)]
        groups = [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "lr": 0.01, "weight_decay": 0.0}]
        optimizer = make(groups, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3, fused=True)
        for step in range(6):
            for parameter in parameters:
                parameter.grad = 64 * torch.randn(parameter.shape, generator=rng)
            # A step whose gradient overflowed, first and in between.
            failed = torch.tensor(float(step in (0, 3)))
            update(optimizer, [each.grad for each in parameters], torch.tensor(64.0), failed)
        found.append((parameters, [optimizer.state[each] for each in parameters]))
    (ours, our_states), (theirs, their_states) = found
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(our_states, their_states, strict=True):
        assert one.keys() == other.keys() and one["step"] == other["step"] == 4
        torch.testing.assert_close(one["exp_avg_sq"], other["exp_avg_sq"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inside", "kernels", "there"), [("multi_tensor_apply", 1, 1), ("multi_tensor_apply", 0, 0), ("lib", 1, 0)]
)
def test_apex_is_used_if_it_is_nvidias_and_has_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, kernels: int, there: int
) -> None:
    (tmp_path / "apex" / inside).mkdir(parents=True)
    # The package of another maker must not be imported either.
    (tmp_path / "apex/__init__.py").write_text("raise RuntimeError\n")
    if kernels:
        (tmp_path / "amp_C.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert apex.has_kernels() == there


def test_apex_on_a_cpu_or_without_its_kernels_is_refused() -> None:
    with pytest.raises(UserError, match="kernel is apex, which computes on CUDA, not on cpu; set it to torch"):
        apex.require_kernels(CPU)
    with pytest.raises(UserError, match="NVIDIA's apex is not installed here with its kernels"):
        apex.require_kernels(torch.device("cuda"))
