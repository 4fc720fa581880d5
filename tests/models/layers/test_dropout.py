"""Dropout zeroes a share of the elements at random, keeps the mean, and is a function of torch's seed."""

import numpy as np
import pytest
import torch

from nlu.models.layers.dropout import Dropout, dropout, dropout_mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_share_is_zeroed_and_the_rest_scaled(dtype, probability):
    torch.manual_seed(3)
    result = dropout(torch.ones(301, 997, dtype=dtype), probability)
    assert result.dtype == dtype and result.shape == (301, 997)
    assert (result == 0).float().mean().item() == pytest.approx(probability, abs=0.005)
    kept = result[result != 0]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - probability)))


def test_rows_and_columns_are_zeroed_independently():
    torch.manual_seed(4)
    zeroed = (dropout(torch.ones(400, 400), 0.5) == 0).float() - 0.5
    between_rows = (zeroed @ zeroed.T / 400 * 4).fill_diagonal_(0)
    between_columns = (zeroed.T @ zeroed / 400 * 4).fill_diagonal_(0)
    assert between_rows.abs().max() < 0.35 and between_columns.abs().max() < 0.35


def test_the_seed_decides():
    values = torch.randn(50, 33)

    def drawn(seed):
        torch.manual_seed(seed)
        return dropout(values, 0.3), dropout(values, 0.3)

    first, second = drawn(1)
    assert not torch.equal(first, second)
    assert all(map(torch.equal, drawn(1), (first, second)))
    assert not torch.equal(drawn(2)[0], first)


def test_gradients_pass_where_values_pass():
    torch.manual_seed(0)
    values = torch.randn(40, 40, requires_grad=True)
    result = dropout(values, 0.4)
    result.sum().backward()
    torch.testing.assert_close(values.grad, result.detach() / values.detach())


def test_the_module_drops_only_while_training():
    values, module = torch.randn(10, 10), Dropout(0.5)
    assert not torch.equal(module(values), values)
    assert module.eval()(values) is values
    assert dropout(values, 0.0) is values


def test_on_a_cpu_the_masks_are_those_of_the_fast_generator():
    values = torch.randn(333, 999)
    torch.manual_seed(5)
    words = np.random.Generator(np.random.SFC64(int(torch.randint(2**62, (1,))))).integers(
        0, 2**64 - 1, size=-(-333 * 999 // 4), dtype=np.uint64, endpoint=True
    )
    drawn = words.view(np.uint16)[: 333 * 999]
    assert (drawn == round(0.3 * 2**16)).any(), "of so many some are the bound itself"
    kept = torch.from_numpy(drawn >= round(0.3 * 2**16)).view(333, 999)
    for drop in (dropout, lambda input, share: input * dropout_mask(input, share)):
        torch.manual_seed(5)
        torch.testing.assert_close(drop(values, 0.3), torch.where(kept, values / 0.7, 0.0))
