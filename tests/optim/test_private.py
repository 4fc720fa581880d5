"""What is taken from inside torch for the optimizer, and the way to do without."""

import copy

import pytest
import torch

from nlu.optim import update as optim_update
from nlu.optim.update import FusedAdamW, update


def test_the_kernel_of_this_torch_divides_gradients() -> None:
    assert optim_update.TAKES_DIVISOR, "gradients are divided in a pass of their own: read nlu/optim/update.py"


@pytest.mark.parametrize("divisor", [1.0, 3.7])
def test_dividing_beforehand_gives_the_update_of_the_kernel_that_divides(
    divisor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(7, 5)) for _ in range(2)]
    parameters[1].data.copy_(parameters[0].data)
    for parameter, takes in zip(parameters, (True, False), strict=True):
        monkeypatch.setattr(optim_update, "TAKES_DIVISOR", takes)
        optimizer = FusedAdamW([parameter], lr=0.1, fused=True)
        for seed in (1, 2):
            torch.manual_seed(seed)
            parameter.grad = torch.randn(7, 5)
            update(optimizer, [parameter.grad], torch.tensor(divisor), None)
    torch.testing.assert_close(parameters[0], parameters[1])


@pytest.mark.parametrize("takes", [True, False])
def test_a_step_that_failed_changes_nothing(takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim_update, "TAKES_DIVISOR", takes)
    parameter = torch.nn.Parameter(torch.ones(3))
    before = copy.deepcopy(parameter)
    optimizer = FusedAdamW([parameter], lr=0.1, fused=True)
    parameter.grad = torch.full((3,), float("inf"))
    update(optimizer, [parameter.grad], torch.tensor(1.0), torch.tensor(1.0))
    assert torch.equal(parameter, before)
