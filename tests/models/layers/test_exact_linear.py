"""A row's result does not depend on how many rows are computed with it."""

import itertools

import pytest
import torch

from nlu.models.layers.exact_linear import Linear, padding_rows


@pytest.mark.parametrize("is_low", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), [(312, 936), (1200, 312), (256, 3), (768, 64), (8, 1), (312, 1)])
def test_a_row_has_the_same_bits_among_any_number_of_others(threads, count, inputs, outputs, is_low):
    threads(count)
    torch.manual_seed(inputs)
    layer, rows = Linear(inputs, outputs), torch.randn(300, inputs)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=is_low):
        together = layer(rows)
        for number in (1, 2, 3, 5, 7, 9, 15, 17, 22, 33, 46, 65, 200):
            assert torch.equal(layer(rows[50 : 50 + number]), together[50 : 50 + number]), f"{number} rows"


@pytest.mark.parametrize("inputs", [15, 26, 234])
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_a_row_has_the_same_bits_at_any_place_although_rows_are_not_aligned(inputs, outputs):
    torch.manual_seed(0)
    layer, rows = Linear(inputs, outputs), torch.randn(300, inputs)
    together = layer(rows)
    for first, count in itertools.product((0, 1, 2, 3, 13), (1, 17, 33, 100)):
        assert torch.equal(layer(rows[first : first + count].clone()), together[first : first + count])


def low_precision(layer, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(inputs)


def test_under_autocast_values_and_gradients_are_those_of_autocast():
    torch.manual_seed(0)
    layer, plain = Linear(40, 24), torch.nn.Linear(40, 24)
    plain.load_state_dict(layer.state_dict())
    inputs = torch.randn(50, 40, requires_grad=True)
    results = []
    for one in (layer, plain):
        output = low_precision(one, inputs)
        assert output.dtype == torch.bfloat16
        results.append((output, *torch.autograd.grad(output.float().square().sum(), [inputs, *one.parameters()])))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0.05)
    assert torch.equal(results[0][0], results[1][0])


def test_in_lower_precision_rows_are_padded_to_few_numbers_by_at_most_a_thirtieth():
    device = torch.device("cpu")
    assert padding_rows(901, device) == 0
    with torch.autocast("cpu", torch.bfloat16):
        totals = {rows + padding_rows(rows, device) for rows in range(512, 4096)}
        assert len(totals) <= 3 * 32 + 1
        assert all(0 <= padding_rows(rows, device) <= max(15, rows / 30) for rows in range(1, 5000))
