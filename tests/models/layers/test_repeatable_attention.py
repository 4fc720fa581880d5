"""Attention is made repeatable in the library's deterministic mode, and not changed without it."""

import pytest
import torch

from nlu.models.layers.attention import repeatable


@pytest.fixture(params=["default", "warn"])
def mode(request):
    torch.set_deterministic_debug_mode(request.param)
    yield request.param
    torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize("has_gradient", [True, False])
def test_only_a_gradient_in_the_deterministic_mode_makes_what_is_computed_strict(mode, has_gradient):
    seen, in_backward = [], []

    def compute(values, factor):
        seen.append((torch.is_grad_enabled(), torch.get_deterministic_debug_mode()))
        squares = values.square()
        if squares.requires_grad:
            squares.register_hook(lambda gradient: in_backward.append(torch.get_deterministic_debug_mode()))
        return squares * factor

    values, factor = torch.tensor([1.0, -3.0], requires_grad=True), torch.tensor(2.0)
    with torch.set_grad_enabled(has_gradient):
        found = repeatable(compute, values, factor)
    assert found.tolist() == [2.0, 18.0] and found.requires_grad == has_gradient
    if not has_gradient:
        assert seen == [(False, {"default": 0, "warn": 1}[mode])]
        return
    assert seen == [(True, {"default": 0, "warn": 2}[mode])]
    (gradient,) = torch.autograd.grad(found.sum(), values, retain_graph=True)
    assert gradient.tolist() == [4.0, -12.0]
    assert in_backward == [seen[0][1]] and torch.get_deterministic_debug_mode() == (mode == "warn"), "and no more after"
    if mode == "default":
        assert torch.autograd.grad(found.sum(), values)[0].tolist() == [4.0, -12.0]
    else:
        with pytest.raises(RuntimeError, match="only once"):
            torch.autograd.grad(found.sum(), values)
