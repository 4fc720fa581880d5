"""Gradients keep their memory from step to step, and never share it with anything that is still in use."""

import pytest
import torch
import torch.nn.functional as F

from nlu.models.layers.linear import Embedding, Linear
from nlu.models.layers.reused import ReusedMemory


def test_memory_is_reused_only_after_its_last_holder_is_gone():
    memory, shape = ReusedMemory(), torch.Size((3, 4))
    first = memory.take(shape)
    place = first.data_ptr()
    second = memory.take(shape)
    assert second.data_ptr() != place
    view = first[0]
    del first
    assert memory.take(shape).data_ptr() != place
    del view
    assert memory.take(shape).data_ptr() == place
    assert memory.take(torch.Size((5, 4))).shape == (5, 4)


def backward(layer: torch.nn.Module, inputs: torch.Tensor, factor: float = 1.0) -> None:
    (layer(inputs).float().square().sum() * factor).backward()


def layers() -> list:
    torch.manual_seed(0)
    return [
        pytest.param(Linear(7, 5), torch.randn(20, 7), False, id="linear"),
        pytest.param(Linear(7, 5), torch.randn(20, 7), True, id="linear in bf16"),
        pytest.param(Embedding(30, 5), torch.randint(30, (20,)), False, id="embedding"),
    ]


@pytest.mark.parametrize(("layer", "inputs", "low"), layers())
def test_a_gradient_keeps_its_memory_from_step_to_step(layer, inputs, low):
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        backward(layer, inputs)
        place = layer.weight.grad.data_ptr()
        first = layer.weight.grad.clone()
        layer.weight.grad = None
        backward(layer, inputs)
    assert layer.weight.grad.data_ptr() == place
    assert torch.equal(layer.weight.grad, first)


@pytest.mark.parametrize(("layer", "inputs", "low"), layers())
def test_micro_batches_and_two_uses_in_one_graph_add_up(layer, inputs, low):
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        backward(layer, inputs)
        once = layer.weight.grad
        expected = once.clone()
        layer.weight.grad = None
        backward(layer, inputs)
        backward(layer, inputs, 2.0)
        torch.testing.assert_close(layer.weight.grad, 3 * expected)
        layer.weight.grad = None
        (layer(inputs).float().square().sum() + 2 * layer(inputs).float().square().sum()).backward()
    torch.testing.assert_close(layer.weight.grad, 3 * expected)
    assert torch.equal(once, expected), "a gradient that was kept has changed"


def test_an_embeddings_gradient_is_that_of_the_lookup():
    torch.manual_seed(0)
    layer, entries = Embedding(9, 4), torch.tensor([3, 3, 0, 8, 3])
    weights = torch.randn(5, 4)
    for _ in range(2):
        layer.weight.grad = None
        (layer(entries) * weights).sum().backward()
        (expected,) = torch.autograd.grad((F.embedding(entries, layer.weight) * weights).sum(), layer.weight)
        assert torch.equal(layer.weight.grad, expected)


def test_a_table_is_zero_outside_of_the_rows_of_its_last_lookup():
    torch.manual_seed(0)
    layer = Embedding(40, 3)
    for number, change in enumerate((None, lambda grad: grad.fill_(7), lambda grad: grad[30].add_(1), None)):
        entries = torch.randint(40, (6,))
        layer.weight.grad = None
        backward(layer, entries)
        expected = torch.zeros(40, 3).index_add_(0, entries, 2 * layer.weight.detach()[entries])
        torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-6, atol=0)
        rows = layer.memory.rows_of(layer.weight.grad)
        assert rows is not None and set(rows.tolist()) == set(entries.tolist()), number
        if change is not None:
            change(layer.weight.grad)
            assert layer.memory.rows_of(layer.weight.grad) is None


def test_the_rows_of_a_sum_of_micro_batches_are_not_known():
    layer = Embedding(40, 3)
    backward(layer, torch.tensor([1, 2]))
    backward(layer, torch.tensor([5]))
    assert layer.memory.rows_of(layer.weight.grad) is None


def test_rows_that_others_have_written_are_cleared_if_they_are_told():
    layer = Embedding(40, 3)
    backward(layer, torch.tensor([1, 2]))
    layer.weight.grad.data[5] = 1
    layer.memory.note(torch.tensor([5]))
    layer.weight.grad = None
    backward(layer, torch.tensor([3]))
    assert layer.weight.grad.any(1).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize(("layer", "inputs", "low"), layers())
def test_gradients_are_written_into_memory_that_was_given(layer, inputs, low):
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        backward(layer, inputs)
        expected, layer.weight.grad = layer.weight.grad.clone(), None
        given = torch.full_like(layer.weight, 3)
        layer.memory.use(given)
        backward(layer, inputs)
        assert layer.weight.grad.data_ptr() == given.data_ptr() and torch.equal(given, expected)
        backward(layer, inputs)
    torch.testing.assert_close(given, 2 * expected)
