"""A row's result does not depend on how many rows are computed with it."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from nlu.models.layers.linear import MIN_ROWS, MIN_ROWS_PER_THREAD, Linear, min_rows, padding_rows


@pytest.mark.parametrize("rows", [0, 1, MIN_ROWS - 1, MIN_ROWS, 100])
def test_the_layer_is_the_linear_map_for_any_number_of_rows(rows):
    torch.manual_seed(rows)
    layer, inputs = Linear(7, 5), torch.randn(rows, 7)
    torch.testing.assert_close(layer(inputs), F.linear(inputs, layer.weight, layer.bias))
    torch.testing.assert_close(layer(inputs, slice(2, 4)), F.linear(inputs, layer.weight[2:4], layer.bias[2:4]))


def test_gradients_are_those_of_the_linear_map():
    torch.manual_seed(0)
    layer, inputs = Linear(7, 5), torch.randn(3, 7, requires_grad=True)
    own = torch.autograd.grad(layer(inputs).square().sum(), [inputs, layer.weight, layer.bias])
    plain = F.linear(inputs, layer.weight, layer.bias).square().sum()
    torch.testing.assert_close(own, torch.autograd.grad(plain, [inputs, layer.weight, layer.bias]))


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


def test_more_threads_want_more_rows(threads):
    threads(1)
    assert min_rows() == MIN_ROWS
    threads(8)
    assert min_rows() == 8 * MIN_ROWS_PER_THREAD > MIN_ROWS


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


def test_the_kept_copy_follows_every_change_of_the_weight():
    torch.manual_seed(0)
    layer, inputs = Linear(8, 6), torch.randn(20, 8)
    with torch.inference_mode():
        first = low_precision(layer, inputs)
    # The copy was made while scoring, and must serve training too.
    low_precision(layer, inputs).float().sum().backward()
    with torch.no_grad():
        layer.weight -= layer.weight.grad
    updated = low_precision(layer, inputs)
    assert not torch.equal(first, updated)
    torch.testing.assert_close(updated.float(), F.linear(inputs, layer.weight, layer.bias), rtol=0.05, atol=0.05)
    layer.load_state_dict(Linear(8, 6).state_dict())
    assert not torch.equal(low_precision(layer, inputs), updated)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_the_kept_copies_follow_the_weight_or_bias_that_is_trained(frozen):
    torch.manual_seed(0)
    layer, inputs = Linear(40, 24), torch.randn(50, 40)
    getattr(layer, frozen).requires_grad_(False)
    optimizer = torch.optim.SGD([parameter for parameter in layer.parameters() if parameter.requires_grad], lr=1.0)
    for _ in range(3):
        low_precision(layer, inputs).float().sum().backward()
        optimizer.step()
        low = [tensor.detach().bfloat16() for tensor in (inputs, layer.weight, layer.bias)]
        torch.testing.assert_close(low_precision(layer, inputs), F.linear(*low))
        with torch.inference_mode():
            torch.testing.assert_close(low_precision(layer, inputs), F.linear(*low))


def test_without_gradients_the_values_are_the_same_and_follow_the_weight():
    torch.manual_seed(0)
    layer, inputs = Linear(40, 24), torch.randn(50, 40)
    for _ in range(2):
        trained = low_precision(layer, inputs)
        with torch.inference_mode():
            torch.testing.assert_close(low_precision(layer, inputs), trained)
            part = low_precision(lambda rows: layer(rows, slice(8, 24)), inputs)
        torch.testing.assert_close(part, trained[:, 8:])
        with torch.no_grad():
            layer.weight.neg_()


def test_a_frozen_weight_gets_no_gradient_under_autocast():
    layer, inputs = Linear(8, 6).requires_grad_(False), torch.randn(20, 8, requires_grad=True)
    low_precision(layer, inputs).float().sum().backward()
    assert layer.weight.grad is None and inputs.grad is not None


def test_in_lower_precision_rows_are_padded_to_few_numbers_by_at_most_a_thirtieth():
    device = torch.device("cpu")
    assert padding_rows(901, device) == 0
    with torch.autocast("cpu", torch.bfloat16):
        totals = {rows + padding_rows(rows, device) for rows in range(512, 4096)}
        assert len(totals) <= 3 * 32 + 1
        assert all(0 <= padding_rows(rows, device) <= max(15, rows / 30) for rows in range(1, 5000))
