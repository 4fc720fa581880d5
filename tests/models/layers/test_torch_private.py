"""Private parts of torch are there in the version they were read in, and nothing but speed is lost without them."""

import pytest
import torch

from nlu.models.layers import torch_private
from nlu.models.layers.attention import attention_over
from nlu.models.layers.linear import Linear, ReusedMemory

PARTS = ("_softmax_backward", "_storage_use_count", "_supports_bf16", "_reorder", "_linear")


@pytest.fixture
def without(monkeypatch):
    """A torch that has none of these parts."""
    for part in PARTS:
        monkeypatch.setattr(torch_private, part, None)


@pytest.mark.skipif(not torch.__version__.startswith(f"{torch_private.READ_IN}."), reason="another version of torch")
def test_all_parts_are_there_in_torch_2_13_in_which_they_were_read():
    assert torch_private.READ_IN == "2.13"
    assert not [part for part in PARTS if getattr(torch_private, part) is None]
    weight = torch.zeros(3)
    before = torch_private.version_of(weight)
    weight += 1
    assert before is not None and torch_private.version_of(weight) == before + 1


def gradient_of_softmax() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    scores, weights = torch.randn(4, 5, 6, dtype=torch.float32, requires_grad=True), torch.randn(4, 5, 6)
    (expected,) = torch.autograd.grad((scores.softmax(-1) * weights).sum(), scores)
    return torch_private.softmax_gradient(weights, scores.detach().softmax(-1)), expected


def test_the_gradient_of_softmax_is_autograds():
    torch.testing.assert_close(*gradient_of_softmax())


def test_without_its_kernel_the_gradient_of_softmax_is_autograds(without):
    torch.testing.assert_close(*gradient_of_softmax())


def test_without_counts_no_memory_is_handed_out_twice(without):
    memory, shape = ReusedMemory(), torch.Size((3, 4))
    first = memory.take(shape).fill_(1)
    second = memory.take(shape).fill_(2)
    assert first.eq(1).all() and second.eq(2).all()
    place = first.data_ptr()
    del first
    third = memory.take(shape).fill_(3)
    assert second.eq(2).all() and third.shape == shape and place


def test_without_blocks_scoring_in_bf16_gives_the_values_of_training(without):
    torch.manual_seed(0)
    layer, inputs = Linear(40, 24), torch.randn(50, 40)
    with torch.autocast("cpu", torch.bfloat16):
        trained = layer(inputs)
        with torch.inference_mode():
            assert torch.equal(layer(inputs), trained)
            assert torch.equal(layer(inputs, slice(8, 24)), trained[:, 8:])


def test_without_versions_the_kept_copy_follows_every_change_of_the_weight(monkeypatch):
    monkeypatch.setattr("nlu.models.layers.linear.version_of", lambda tensor: None)
    torch.manual_seed(0)
    layer, inputs = Linear(8, 6), torch.randn(20, 8)
    with torch.autocast("cpu", torch.bfloat16):
        first = layer(inputs)
        with torch.no_grad():
            layer.weight.neg_()
            layer.bias.neg_()
        assert torch.equal(layer(inputs), -first)


def test_without_any_of_them_attention_has_the_same_gradient(without):
    torch.manual_seed(0)
    qkv = torch.randn(12, 36, requires_grad=True)
    attention = attention_over([2, 3, 7], 3, torch.device("cpu"))
    found = attention.self_attention(qkv, 0.0)
    (gradient,) = torch.autograd.grad(found.square().sum(), qkv)
    expected = []
    for part in qkv.split([2, 3, 7]):
        query, key, value = part.view(-1, 3, 3, 4).permute(1, 2, 0, 3)
        expected.append(((query @ key.mT / 2).softmax(-1) @ value).transpose(0, 1).flatten(1))
    (wanted,) = torch.autograd.grad(torch.cat(expected).square().sum(), qkv)
    torch.testing.assert_close(gradient, wanted)
