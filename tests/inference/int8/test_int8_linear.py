"""Linear layers in int8, against whole numbers computed in numpy."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.inference.int8.compiled import LOWEST
from nlu.inference.int8.int8_linear import QuantizedLinear, multiplies_integers
from nlu.models.layers.exact_linear import ACTIVATIONS, IN_PLACE, Linear

pytestmark = pytest.mark.needs(multiplies_integers, "no products of integers")


def layer(inputs: int = 40, outputs: int = 24, seed: int = 0) -> Linear:
    torch.manual_seed(seed)
    return Linear(inputs, outputs).requires_grad_(False)


def by_hand(linear: Linear, input_RI: Tensor, lowest: float | None) -> np.ndarray:
    """The same layer from its definition, with sums of 64-bit integers and scales in double precision."""
    weight_OI, rows_RI = linear.weight.double().numpy(), input_RI.double().numpy()
    scale_O = np.abs(weight_OI).max(1) / 127
    whole_OI = np.rint(weight_OI / scale_O[:, None]).astype(np.int64)
    if lowest is None:
        step_R1 = np.abs(rows_RI).max(1, keepdims=True) / 127
        found_RI = np.rint(rows_RI / step_R1).astype(np.int64) @ whole_OI.T * step_R1
    else:
        step_R1 = (rows_RI.max(1, keepdims=True) - lowest) / 255
        found_RI = np.rint((rows_RI - lowest) / step_R1).astype(np.int64) @ whole_OI.T * step_R1
        found_RI = found_RI + lowest * whole_OI.sum(1)
    result: np.ndarray = found_RI * scale_O + linear.bias.double().numpy()
    return result


@pytest.mark.parametrize("shape", [(1, 40, 24), (33, 312, 936), (50, 100, 7)])
@pytest.mark.parametrize("lowest", [None, LOWEST["gelu"]])
def test_the_result_is_that_of_whole_weights_and_whole_activations(shape, lowest):
    rows, inputs, outputs = shape
    linear = layer(inputs, outputs)
    # Rows of very different sizes, each with its own scale.
    input_RI = torch.randn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None]
    if lowest is not None:
        input_RI = F.gelu(input_RI)
    expected_RO = by_hand(linear, input_RI, lowest)
    found_RO = QuantizedLinear(linear, lowest=lowest)(input_RI).numpy()
    # A number between two whole ones may be rounded to the other one in single precision.
    scale_R1 = np.abs(expected_RO).max(1, keepdims=True)
    assert (np.abs(found_RO - expected_RO) / scale_R1).max() < 2e-3
    assert np.median(np.abs(found_RO - expected_RO) / scale_R1) < 1e-6


@pytest.mark.parametrize("name", LOWEST)
def test_no_result_of_an_activation_is_below_its_bound(name):
    results = ACTIVATIONS[name](torch.linspace(-3, 3, 1_000_001))
    assert LOWEST[name] <= results.min().item() < LOWEST[name] + 2e-4
    assert set(LOWEST) == set(ACTIVATIONS) == set(IN_PLACE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", IN_PLACE)
def test_an_activation_in_place_gives_the_same_bits(name, dtype):
    inputs = torch.linspace(-9, 9, 100_003).to(dtype)
    expected = ACTIVATIONS[name](inputs)
    assert IN_PLACE[name](inputs) is inputs and torch.equal(inputs, expected)


def test_a_step_from_the_least_result_of_gelu_on_is_finer_than_one_around_zero():
    linear, input_RI = layer(1248, 312), F.gelu(torch.randn(64, 1248))
    exact_RO = linear(input_RI)
    errors = [(QuantizedLinear(linear, lowest=low)(input_RI) - exact_RO).norm() for low in (LOWEST["gelu"], None)]
    assert errors[0] < errors[1] < 0.02 * exact_RO.norm()


def test_some_outputs_have_the_bits_of_all_of_them():
    quantized, input_RI = QuantizedLinear(layer()), torch.randn(5, 40)
    whole_RO = quantized(input_RI)
    assert torch.equal(quantized(input_RI, slice(8)), whole_RO[:, :8])
    assert torch.equal(quantized(input_RI, slice(8, None)), whole_RO[:, 8:])


@pytest.mark.parametrize("lowest", [None, LOWEST["gelu"]])
def test_a_row_has_the_same_bits_in_any_batch(lowest):
    quantized, input_RI = QuantizedLinear(layer(), lowest=lowest), F.gelu(torch.randn(70, 40))
    whole_RO = quantized(input_RI)
    for start, stop in [(0, 1), (3, 20), (69, 70), (1, 70)]:
        assert torch.equal(quantized(input_RI[start:stop]), whole_RO[start:stop])
    larger = torch.cat([input_RI, 1000 * input_RI])
    assert torch.equal(quantized(larger)[:70], whole_RO)


def test_rows_of_zeros_give_the_bias_and_no_rows_give_none():
    linear = layer()
    quantized = QuantizedLinear(linear)
    assert torch.equal(quantized(torch.zeros(3, 40)), linear.bias.expand(3, -1))
    assert quantized(torch.zeros(0, 40)).shape == (0, 24)


def test_a_number_that_is_not_finite_stays_visible_in_its_row_only():
    input_RI = torch.randn(3, 40)
    input_RI[1, 7] = torch.nan
    found_RO = QuantizedLinear(layer())(input_RI)
    assert found_RO[1].isnan().all() and found_RO[[0, 2]].isfinite().all()


def test_the_gradient_for_the_input_is_that_of_the_rounded_weight():
    quantized = QuantizedLinear(layer())
    input_RI, gradient_RO = torch.randn(5, 40, requires_grad=True), torch.randn(5, 24)
    (found_RI,) = torch.autograd.grad(quantized(input_RI), input_RI, gradient_RO)
    torch.testing.assert_close(found_RI, gradient_RO @ quantized.weight_OI)
    (some_RI,) = torch.autograd.grad(quantized(input_RI, slice(4, 9)), input_RI, gradient_RO[:, 4:9])
    torch.testing.assert_close(some_RI, gradient_RO[:, 4:9] @ quantized.weight_OI[4:9])
