"""A row's result does not depend on how many rows are computed with it."""

import pytest
import torch
import torch.nn.functional as F

from nlu.models.linear import MIN_ROWS, MIN_ROWS_PER_THREAD, Linear, linear, min_rows


@pytest.mark.parametrize("rows", [0, 1, MIN_ROWS - 1, MIN_ROWS, 100])
def test_it_is_the_linear_map_for_any_number_of_rows(rows):
    torch.manual_seed(rows)
    layer, inputs = Linear(7, 5), torch.randn(rows, 7)
    torch.testing.assert_close(layer(inputs), F.linear(inputs, layer.weight, layer.bias))
    assert linear(inputs, layer.weight, None).shape == (rows, 5)


def test_gradients_are_those_of_the_linear_map():
    torch.manual_seed(0)
    layer, inputs = Linear(7, 5), torch.randn(3, 7, requires_grad=True)
    own = torch.autograd.grad(layer(inputs).square().sum(), [inputs, layer.weight, layer.bias])
    plain = F.linear(inputs, layer.weight, layer.bias).square().sum()
    torch.testing.assert_close(own, torch.autograd.grad(plain, [inputs, layer.weight, layer.bias]))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), [(312, 936), (1200, 312), (256, 3), (768, 64)])
def test_a_row_has_the_same_bits_among_any_number_of_others(threads, count, inputs, outputs):
    threads(count)
    torch.manual_seed(inputs)
    layer, rows = Linear(inputs, outputs), torch.randn(300, inputs)
    with torch.inference_mode():
        together = layer(rows)
        for number in (1, 2, 3, 5, 7, 9, 15, 17, 33, 65, 200):
            assert torch.equal(layer(rows[50 : 50 + number]), together[50 : 50 + number]), f"{number} rows"


def test_more_threads_want_more_rows(threads):
    threads(1)
    assert min_rows() == MIN_ROWS
    threads(8)
    assert min_rows() == 8 * MIN_ROWS_PER_THREAD > MIN_ROWS
