"""Private parts of torch are there in the version they were read in, and nothing but speed is lost without them."""

import pytest
import torch

from nlu.models.layers import torch_private
from nlu.models.layers.attention import attention_over
from nlu.models.layers.linear import Linear
from nlu.models.layers.reused import ReusedMemory

PARTS = ("_softmax_backward", "_storage_use_count", "_supports_bf16", "_reorder", "_linear", "_flash_attention")


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


def test_the_kernel_of_a_cpu_does_not_get_the_rows_of_another_device(monkeypatch):
    def refuse(*_):
        raise AssertionError("the kernel of a CPU")

    monkeypatch.setattr(torch_private, "_linear", refuse)
    rows, weight, bias = (torch.empty(*sizes, dtype=torch.bfloat16, device="meta") for sizes in ((5, 4), (3, 4), (3,)))
    assert torch_private.linear_product(rows, weight, bias).shape == (5, 3)


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


@pytest.mark.parametrize("rows", [16, 17, 100, 1001])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_product_has_the_bits_of_linear_also_without_its_kernel(rows, precision, monkeypatch):
    torch.manual_seed(0)
    for inputs, outputs in ((26, 17), (48, 144), (312, 936), (768, 3072)):
        given = (torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs))
        operands = [operand.to(precision) for operand in given]
        expected = torch.nn.functional.linear(*operands)
        assert torch.equal(torch_private.linear_product(*operands), expected)
        with monkeypatch.context() as patch:
            patch.setattr(torch_private, "_linear", None)
            assert torch.equal(torch_private.linear_product(*operands), expected)


def test_a_module_with_anything_around_its_forward_is_not_plain(monkeypatch):
    def made() -> torch.nn.Module:
        return torch.nn.LayerNorm(3)

    plain = made()
    assert torch_private.is_plain([plain, made()])
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        hooked = made()
        handle = getattr(hooked, f"register_{register}")(lambda *_: None)
        assert not torch_private.is_plain([plain, hooked]), register
        handle.remove()
        assert torch_private.is_plain([plain, hooked])
        handle = getattr(torch.nn.modules.module, f"register_module_{register}")(lambda *_: None)
        assert not torch_private.is_plain([plain]), register
        handle.remove()
    replaced = made()
    replaced.forward = lambda x: x
    assert not torch_private.is_plain([replaced])
    # Of a torch that has other names, nothing is known.
    monkeypatch.setattr(torch_private, "_HOOKS", ("_renamed_hooks",))
    assert not torch_private.is_plain([plain])
