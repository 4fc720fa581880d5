"""The two ways of computing attention agree, and neither lets sequences see one another."""

import numpy as np
import pytest
import torch

from nlu.models.layers.attention import (
    AttentionInOneKernel,
    _drops,
    _without_dropout,
    attention_over,
    attention_weights,
    packed_kernel,
)
from nlu.models.layers.dropout import dropout

LENGTHS = [1, 2, 2, 2, 5, 9, 9, 17]
HEADS, WIDTH = 3, 12
CPU = torch.device("cpu")


def packed_by_definition(query, key, value, query_bounds, bounds, longest_query, longest, *, scale):
    """The contract of torch.nn.attention.varlen.varlen_attn, which lacks a kernel for a CPU."""
    assert (query.shape[-1] % 8, query_bounds.dtype, bounds.dtype) == (0, torch.int32, torch.int32)
    assert longest_query == query_bounds.diff().max() and longest == bounds.diff().max()
    sizes, query_sizes = bounds.diff().tolist(), query_bounds.diff().tolist()
    rows = zip(query.split(query_sizes), key.split(sizes), value.split(sizes), strict=True)
    return torch.cat(
        [torch.einsum("hqk,khe->qhe", (torch.einsum("qhe,khe->hqk", q, k) * scale).softmax(-1), v) for q, k, v in rows]
    )


WAYS = {
    "products": lambda lengths: attention_over(lengths, HEADS, CPU),
    "one kernel": lambda lengths: AttentionInOneKernel(lengths, HEADS, CPU),
}


class Packed(AttentionInOneKernel):
    """Reads packed rows in any precision, so that rounding hides no mistake."""

    def __init__(self, lengths):
        super().__init__(lengths, HEADS, CPU, lambda device, dropout_p: packed_by_definition)

    def _kernel_for(self, packed_TC, parts, dropout_p):
        return self._packed_kernel(packed_TC.device, dropout_p) if not dropout_p else None


def attend(
    query: torch.Tensor, key_value: torch.Tensor, lengths: list[int], *, first_only: bool, dropout_p: float = 0.0,
    way: str = "products",
) -> torch.Tensor:  # fmt: skip
    attention = Packed(lengths) if way == "packed" else WAYS[way](lengths)
    if first_only:
        return attention.first_token_attention(query, key_value, dropout_p)
    return attention.self_attention(torch.cat([query, key_value], dim=1), dropout_p)


def inputs(lengths: list[int], first_only: bool) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(len(lengths))
    query = torch.randn(len(lengths) if first_only else sum(lengths), WIDTH, requires_grad=True)
    return query, torch.randn(sum(lengths), 2 * WIDTH, requires_grad=True)


def reference(
    query: torch.Tensor, key_value: torch.Tensor, lengths: list[int], first_only: bool, masks: list | None = None
) -> torch.Tensor:
    """The formula, sequence by sequence and head by head; `masks` multiply the weights, (heads, queries, keys) each."""
    rows = []
    queries = query.split([1] * len(lengths) if first_only else lengths)
    masks = masks or [torch.ones(HEADS, 1, 1)] * len(lengths)
    for q, kv, mask in zip(queries, key_value.split(lengths), masks, strict=True):
        heads = [slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS) for h in range(HEADS)]
        keys, values = kv[:, :WIDTH], kv[:, WIDTH:]
        scores = [
            ((q[:, h] @ keys[:, h].T / (WIDTH // HEADS) ** 0.5).softmax(-1) * m) @ values[:, h]
            for h, m in zip(heads, mask, strict=True)
        ]
        rows.append(torch.cat(scores, dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [7], [3, 3, 3]])
def test_all_ways_give_the_formulas_values_and_gradients(lengths, first_only):
    query, key_value = inputs(lengths, first_only)
    expected = reference(query, key_value, lengths, first_only)
    weights = torch.randn(expected.shape)
    gradients = torch.autograd.grad((expected * weights).sum(), [query, key_value])
    for way in (*WAYS, "packed"):
        found = attend(query, key_value, lengths, first_only=first_only, way=way)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        own = torch.autograd.grad((found * weights).sum(), [query, key_value])
        torch.testing.assert_close(own, gradients, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("scores", [torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("first_only", [False, True])
def test_a_sequence_has_the_same_bits_by_itself_and_among_others(first_only, scores):
    query, key_value = inputs(LENGTHS, first_only)
    counts = [1] * len(LENGTHS) if first_only else LENGTHS
    with scores():
        together = attend(query, key_value, LENGTHS, first_only=first_only)
        parts = zip(LENGTHS, query.split(counts), key_value.split(LENGTHS), together.split(counts), strict=True)
        for length, q, kv, expected in parts:
            assert torch.equal(attend(q, kv, [length], first_only=first_only), expected)


@torch.inference_mode()
def test_a_lone_head_of_a_lone_sequence_has_the_same_bits_with_any_number_of_threads(threads):
    length, width = 40, 26
    torch.manual_seed(0)
    qkv = torch.randn(2 * length, 3 * width)
    found = []
    for count in (1, 4):
        threads(count)
        for lengths in ([length], [length, length]):
            found.append(attention_over(lengths, 1, CPU).self_attention(qkv[: sum(lengths)], 0.0)[:length])
    assert all(torch.equal(rows, found[0]) for rows in found)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("first_only", [False, True])
def test_rows_after_the_last_sequence_are_ignored_and_come_out_as_zeros(first_only, dropout_p):
    query, key_value = inputs(LENGTHS, first_only)
    longer = [torch.cat([key_value, torch.full((3, 2 * WIDTH), torch.nan)])]
    longer.insert(0, query if first_only else torch.cat([query, torch.full((3, WIDTH), torch.nan)]))
    results = []
    for given in ([query, key_value], longer):
        torch.manual_seed(0)
        mixed = attend(*given, LENGTHS, dropout_p=dropout_p, first_only=first_only)
        gradients = torch.autograd.grad(mixed.square().sum(), [query, key_value])
        results.append((mixed, *gradients))
    (mixed, *gradients), (longer_mixed, *longer_gradients) = results
    assert torch.equal(longer_mixed[: len(mixed)], mixed)
    assert not longer_mixed[len(mixed) :].any()
    assert all(map(torch.equal, gradients, longer_gradients))


@pytest.mark.parametrize("way", WAYS)
def test_padding_is_ignored_even_where_it_would_weigh_most(way):
    query, key_value = inputs([1, 30], False)
    # A padded key is zero, so it scores 0; all real scores of the short sequence are far below.
    with torch.no_grad():
        query[0], key_value[0] = 5.0, -5.0
    found = attend(query, key_value, [1, 30], first_only=False, way=way)
    torch.testing.assert_close(found[0], torch.full((WIDTH,), -5.0))


@pytest.mark.parametrize("first_only", [False, True])
def test_attention_with_dropout_has_the_values_and_gradients_of_the_weights_it_drew(first_only, monkeypatch):
    query, key_value = inputs(LENGTHS, first_only)
    masks = []

    def drop(weights, *how):
        dropped = dropout(weights, *how)
        masks.append((dropped / weights).detach())
        return dropped

    monkeypatch.setattr("nlu.models.layers.attention.dropout", drop)
    ours = attend(query, key_value, LENGTHS, dropout_p=0.4, first_only=first_only)
    own = [row for group in masks for row in group.view(-1, HEADS, *group.shape[1:])]
    plain = reference(query, key_value, LENGTHS, first_only, own)
    torch.testing.assert_close(ours, plain)
    weights = torch.randn_like(ours)
    found, expected = (torch.autograd.grad((output * weights).sum(), [query, key_value]) for output in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_only_half_precision_uses_the_packed_kernel_with_or_without_dropout():
    asked = []

    def kernel_for(device, dropout_p):
        asked.append(dropout_p)
        return packed_by_definition

    attention = AttentionInOneKernel([2, 3], HEADS, CPU, kernel_for)
    qkv = torch.randn(5, 3 * WIDTH)
    for given, dropout_p in ((qkv, 0.0), (qkv.bfloat16(), 0.5), (qkv.bfloat16(), 0.0)):
        assert attention.self_attention(given, dropout_p).shape == (5, WIDTH)
    assert asked == [0.5, 0.0]


@pytest.mark.parametrize(("width", "is_packed"), [(256, True), (264, False)])
def test_heads_wider_than_the_packed_kernel_computes_are_padded(width, is_packed):
    asked = []

    def kernel_for(device, dropout_p):
        asked.append(dropout_p)
        return packed_by_definition

    attention = AttentionInOneKernel([2, 3], 1, CPU, kernel_for)
    assert attention.self_attention(torch.randn(5, 3 * width).bfloat16(), 0.0).shape == (5, width)
    query, key_value = torch.randn(2, width).bfloat16(), torch.randn(5, 2 * width).bfloat16()
    assert attention.first_token_attention(query, key_value, 0.0).shape == (2, width)
    assert len(asked) == 2 * is_packed


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_a_packed_kernel_that_does_not_work_is_not_used(dropout_p):
    before = torch.get_rng_state()
    assert packed_kernel(CPU, dropout_p) is None
    assert torch.equal(torch.get_rng_state(), before), "the probe draws no random numbers of a run"


def test_a_working_packed_kernel_is_found_in_training_and_in_scoring(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", packed_by_definition)
    for asking in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with asking():
            assert _without_dropout.__wrapped__(CPU) is not None, asking


@pytest.mark.parametrize(("factor", "works"), [(1, True), (0.3, False)])
def test_a_packed_kernel_with_dropout_is_used_only_if_it_computes_what_dropout_does(monkeypatch, factor, works):
    def with_dropout(*arguments, scale, dropout_p):
        mixed = packed_by_definition(*arguments, scale=scale)
        return mixed * torch.rand(len(mixed), 1, 1).ge(dropout_p) / (1 - dropout_p) * factor

    monkeypatch.setattr("nlu.models.layers.attention.packed_attention", with_dropout)
    assert _drops.__wrapped__(CPU) is works


@pytest.fixture
def deterministic():
    """The mode in which a run on an accelerator trains."""
    torch.set_deterministic_debug_mode("warn")
    yield
    torch.set_deterministic_debug_mode("default")


cuda = pytest.mark.gpu
gpu = pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=cuda) for dtype in (torch.float32, torch.bfloat16)])


def on_device(device, dtype, dropout_p, *, heads, width, lengths, first_only=False):
    """Values and gradients of one call on a device, and the same in fp32 on the host."""
    torch.manual_seed(1)
    counts = (len(lengths) if first_only else sum(lengths)), sum(lengths)
    values = torch.randn(counts[0], width), torch.randn(counts[1], 2 * width)
    results = []
    for where, kind in ((torch.device(device), dtype), (CPU, torch.float32)):
        query, key_value = (value.to(where, kind).requires_grad_() for value in values)
        attention = attention_over(lengths, heads, where)
        torch.manual_seed(2)
        if first_only:
            found = attention.first_token_attention(query, key_value, dropout_p)
        else:
            found = attention.self_attention(torch.cat([query, key_value], dim=1), dropout_p)
        results.append([found, *torch.autograd.grad(found.float().square().sum(), [query, key_value])])
    return results


@gpu
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize(("heads", "width"), [(3, 12), (12, 312), (2, 128)])
def test_on_cuda_attention_is_that_of_the_host(device, dtype, heads, width, first_only):
    ours, expected = on_device(device, dtype, 0.0, heads=heads, width=width, lengths=LENGTHS, first_only=first_only)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for found, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(found.float().cpu(), wanted, atol=tolerance, rtol=tolerance)


@gpu
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize("first_only", [False, True])
def test_on_cuda_attention_and_its_gradient_are_finite_and_equal_twice(
    deterministic, device, dtype, dropout_p, first_only
):
    sizes = {"heads": 12, "width": 768, "lengths": [512] * 4, "first_only": first_only}
    one, other = (on_device(device, dtype, dropout_p, **sizes)[0] for _ in range(2))
    assert all(tensor.isfinite().all() for tensor in one)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=cuda) for dtype in (torch.float16, torch.bfloat16)])
@pytest.mark.parametrize("first_only", [False, True])
def test_on_cuda_dropout_of_packed_attention_scales_the_weights_that_it_keeps(dtype, first_only):
    heads, width, lengths, dropout_p = 2, 32, [3, 9, 16], 0.25
    device, total = torch.device("cuda"), sum(lengths)
    kernel = packed_kernel(device, dropout_p)
    assert kernel is not None
    torch.manual_seed(3)
    query, key, value = (
        torch.randn(rows, heads, width, dtype=dtype, device=device, requires_grad=True)
        for rows in (len(lengths) if first_only else total, total, total)
    )
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    query_bounds = torch.arange(len(lengths) + 1, dtype=torch.int32, device=device) if first_only else bounds

    def attend(value):
        # The same masks, which depend on the seed and on the place only.
        torch.manual_seed(7)
        longest = max(lengths)
        return kernel(query, key, value, query_bounds, bounds, 1 if first_only else longest, longest, scale=0.5)

    # With unit vectors as values, the result is the dropped weights themselves.
    units = torch.cat([torch.eye(length, width, dtype=dtype, device=device) for length in lengths])
    dropped = attend(units[:, None].expand(-1, heads, -1).contiguous()).detach().double().cpu()
    found = attend(value)
    gradients = torch.autograd.grad(found.float().square().sum(), [query, key, value])
    exact = [tensor.detach().double().cpu().requires_grad_() for tensor in (query, key, value)]
    sizes = [1] * len(lengths) if first_only else lengths
    parts, kept = [], []
    queries, keys, values = exact[0].split(sizes), exact[1].split(lengths), exact[2].split(lengths)
    for rows, q, k, v in zip(dropped.split(sizes), queries, keys, values, strict=True):
        weights = (torch.einsum("qhe,khe->hqk", q, k) * 0.5).softmax(-1)
        mask = rows[..., : len(k)].permute(1, 0, 2).gt(0)
        kept.append(mask.flatten())
        parts.append(torch.einsum("hqk,khe->qhe", weights * mask / (1 - dropout_p), v))
    expected = torch.cat(parts)
    wanted = torch.autograd.grad(expected.square().sum(), exact)
    assert 0.6 < torch.cat(kept).double().mean() < 0.9
    for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
        one = one.detach().double().cpu()
        assert (one - other).norm() / other.norm() < 0.02


def test_the_weights_of_attention_are_those_of_the_formula():
    query, key_value = inputs(LENGTHS, False)
    found = attention_weights(query, key_value[:, :WIDTH], LENGTHS, HEADS)
    for q, kv, weights_HLL in zip(query.split(LENGTHS), key_value.split(LENGTHS), found, strict=True):
        q, k = (rows.detach().double().numpy().reshape(-1, HEADS, WIDTH // HEADS) for rows in (q, kv[:, :WIDTH]))
        exponents = np.exp(np.einsum("qhe,khe->hqk", q, k) / np.sqrt(WIDTH / HEADS))
        expected = exponents / exponents.sum(-1, keepdims=True)
        np.testing.assert_allclose(weights_HLL.detach().numpy(), expected, atol=1e-6)
