"""AdamW by the kernel in C, against its formula in NumPy and against torch's kernel.

Fused products are computed in float64, which holds a product of two float32 numbers exactly.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nlu.optim.compiled import STRETCH, update_in_one_pass
from nlu.optim.fused import update_in_place
from tests.models.layers.compiled.machine import compiles_training

pytestmark = pytest.mark.needs(compiles_training, "needs a C compiler, AVX-512 and its bf16")

COUNT = 4096 + 80
GROUP: dict[str, Any] = {"lr": 0.013, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.07}
DIVISOR, AMOUNT, STEP = 2.37, 0.013, 7.0


def lines() -> list[Tensor]:
    """Return weights, gradients, both moments and averages of all magnitudes."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.integers(-9, 3, (5, COUNT))
    values = (rng.normal(size=(5, COUNT)) * scales).astype(np.float32)
    values[3] = np.abs(values[3])
    return [torch.from_numpy(each.copy()) for each in values]


def fused(a: Any, b: Any, c: Any) -> np.ndarray:
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def between(start: np.ndarray, end: np.ndarray, amount: np.float32) -> np.ndarray:
    """Return what lies between, computed from the nearer end."""
    if amount < 0.5:
        return fused(amount, end - start, start)
    return fused(amount - np.float32(1), end - start, end)


def expected(lines: list[Tensor], divisor: float, amount: float, group: dict[str, Any]) -> list[np.ndarray]:
    """Return weights, moments and averages after an update."""
    number = np.float32
    w, g, m, v, a = (each.numpy() for each in lines)
    beta1, beta2 = group["betas"]
    g = g / number(divisor)
    m = between(m, g, number(1 - beta1))
    v = fused(number(1 - beta2) * g, g, v * number(beta2))
    scale = np.sqrt(v) / number((1 - beta2**STEP) ** 0.5) + number(group["eps"])
    w = w * number(1 - group["lr"] * group["weight_decay"]) + number(-group["lr"] / (1 - beta1**STEP)) * m / scale
    return [w, m, v, between(a, w, number(amount))]


def run(
    lines: list[Tensor], stretches: list[tuple[int, ...]], divisor: float = DIVISOR, amount: float = AMOUNT
) -> None:
    other = {**GROUP, "lr": 0.5, "weight_decay": 0.0, "betas": (0.4, 0.9)}
    groups = [(GROUP, STEP), (other, STEP)]
    update_in_one_pass(lines[:4], lines[4], np.array(stretches, STRETCH), groups, divisor, amount)


def assert_bits(found: Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(found.numpy().view(np.int32), wanted.view(np.int32))


@pytest.mark.parametrize("divisor", [DIVISOR, 1.0])
@pytest.mark.parametrize("amount", [AMOUNT, 0.8])
def test_an_update_has_the_bits_of_its_formula_however_it_is_cut(divisor: float, amount: float) -> None:
    own = lines()
    wanted = expected(own, divisor, amount, GROUP)
    gradient = own[1].clone()
    run(own, [(0, 48, 0, 0, 0), (48, 2051, 0, 0, 0), (2051, 2052, 0, 0, 0), (2052, COUNT, 0, 0, 0)], divisor, amount)
    for found, each in zip((own[0], *own[2:]), wanted, strict=True):
        assert_bits(found, each)
    assert torch.equal(own[1], gradient), "a gradient is divided in registers"


def test_each_stretch_has_the_settings_of_its_group_and_others_stay() -> None:
    own, before = lines(), lines()
    other = {**GROUP, "lr": 0.5, "weight_decay": 0.0, "betas": (0.4, 0.9)}
    run(own, [(16, 1000, 0, 1, 0), (1008, 1500, 0, -1, 0)])
    wanted = expected(before, DIVISOR, AMOUNT, other)
    for place, each in zip((0, 2, 3, 4), wanted, strict=True):
        assert_bits(own[place][16:1000], each[16:1000])
        assert torch.equal(own[place][:16], before[place][:16]) and torch.equal(own[place][1500:], before[place][1500:])
    # The average also follows weights that are not updated.
    assert_bits(own[4][1008:1500], fused(np.float32(AMOUNT), before[0] - before[4], before[4])[1008:1500])
    for place in (0, 2, 3):
        assert torch.equal(own[place][1000:], before[place][1000:])


def test_rows_that_rest_have_the_bits_of_an_update_without_gradient_and_moments() -> None:
    own = lines()
    whole = [each.clone() for each in own]
    for each in whole[1:4]:
        each.zero_()
    run(whole, [(0, COUNT, 0, 0, 0)])
    moments = [each.clone() for each in own[2:4]]
    run(own, [(0, COUNT, 0, 0, 1)])
    assert torch.equal(own[0], whole[0]) and torch.equal(own[4], whole[4])
    assert all(torch.equal(one, other) for one, other in zip(own[2:4], moments, strict=True))


@pytest.mark.parametrize("rests", [0, 1])
def test_copies_are_the_updated_weights_in_bf16(rests: int) -> None:
    own, copy = lines(), torch.full((COUNT,), 9.0, dtype=torch.bfloat16)
    run(own, [(32, 1003, copy.data_ptr() + 2 * 32, 0, rests), (1008, 2000, 0, 0, rests)])
    assert torch.equal(copy[32:1003], own[0][32:1003].bfloat16())
    assert bool((copy[:32] == 9).all()) and bool((copy[1003:] == 9).all())


def test_without_an_average_none_is_read() -> None:
    own, before = lines(), lines()
    update_in_one_pass(own[:4], None, np.array([(0, COUNT, 0, 0, 0)], STRETCH), [(GROUP, STEP)], DIVISOR, 0.0)
    assert torch.equal(own[4], before[4])
    assert_bits(own[0], expected(before, DIVISOR, 0.0, GROUP)[0])


def test_the_update_is_that_of_torchs_kernel() -> None:
    own, theirs = lines(), lines()
    run(own, [(0, COUNT, 0, 0, 0)])
    update_in_place(GROUP, theirs[0], theirs[1], theirs[2], theirs[3], torch.tensor(STEP - 1), torch.tensor(DIVISOR))
    theirs[4].lerp_(theirs[0], AMOUNT)
    for place in (0, 2, 3, 4):
        torch.testing.assert_close(own[place], theirs[place], rtol=3e-7, atol=0.0)
