"""Attention and means over packed sequences with filling, against torch's attention of each sequence in float64.

Axes: T tokens, S sequences, L slots of each, D width.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.data.collate import Filling
from nlu.models.layers.filled_attention import FilledAttention, mean_of_filled
from tests.few import first

HEADS, WIDTH = 3, 12
LENGTHS = [1, 2, 5, 5, 0, 0]
"""the last two sequences are filling, as are the tokens behind the thirteenth"""


def filling_of(lengths: list[int], tokens: int, longest: int) -> Filling:
    """Lay sequences side by side, and let filling point to a token of another sequence."""
    slots_SL, slot_T = np.full((len(lengths), longest), tokens - 1), np.full(tokens, -1)
    place = 0
    for number, length in enumerate(lengths):
        for position in range(length):
            slots_SL[number, position], slot_T[place] = place, number * longest + position
            place += 1
    empty = torch.zeros(0)
    return Filling(
        torch.from_numpy(slots_SL), torch.tensor(lengths), torch.from_numpy(slot_T), empty, empty, rows=len(lengths)
    )


def alone(qkv_T3D: Tensor, lengths: list[int], queries: int | None = None) -> list[Tensor]:
    """Return torch's attention of each sequence by itself, (tokens or `queries`, D)."""
    results, start = [], 0
    for length in lengths:
        parts = qkv_T3D[start : start + length].chunk(3, dim=1)
        query, key, value = (part.unflatten(1, (HEADS, -1)).transpose(0, 1) for part in parts)
        mixed = F.scaled_dot_product_attention(query[:, :queries], key, value)
        results.append(mixed.transpose(0, 1).flatten(1))
        start += length
    return results


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize(("tokens", "longest"), first(2, [(13, 5), (20, 8), (16, 5), (13, 16)]))
def test_each_sequence_attends_to_itself_only(tokens: int, longest: int, is_trained: bool) -> None:
    filling = filling_of(LENGTHS, tokens, longest)
    attention = FilledAttention(filling.slots_SL, filling.lengths_S, filling.slot_T, HEADS)
    qkv_T3D = torch.randn(tokens, 3 * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    qkv_T3D.requires_grad_(is_trained)
    weights_TD = torch.randn(13, WIDTH, dtype=torch.float64)
    with torch.set_grad_enabled(is_trained):
        found_TD = attention.self_attention(qkv_T3D, 0.0)
        first_SD = attention.first_token_attention(
            qkv_T3D[filling.slots_SL[:, 0], :WIDTH], qkv_T3D[:, WIDTH:], dropout_p=0.0
        )[:4]
    expected_TD, alone_SD = torch.cat(alone(qkv_T3D, LENGTHS[:4])), torch.cat(alone(qkv_T3D, LENGTHS[:4], queries=1))
    torch.testing.assert_close(found_TD[:13], expected_TD, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(first_SD, alone_SD, rtol=1e-6, atol=1e-6)
    assert torch.equal(found_TD[13:], torch.zeros(tokens - 13, WIDTH, dtype=torch.float64))
    if is_trained:
        for found, expected in ((found_TD[:13], expected_TD), (first_SD, alone_SD)):
            weights = weights_TD[: len(found)]
            (own,), (other,) = (
                torch.autograd.grad((result * weights).sum(), qkv_T3D, retain_graph=True)
                for result in (found, expected)
            )
            torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)
            assert not own[13:].any()


def test_filling_is_finite_and_has_no_gradient_even_if_its_rows_are_large() -> None:
    filling = filling_of(LENGTHS, 20, 8)
    attention = FilledAttention(filling.slots_SL, filling.lengths_S, filling.slot_T, HEADS)
    qkv_T3D = torch.randn(20, 3 * WIDTH)
    qkv_T3D[13:] = 1e18
    qkv_T3D.requires_grad_()
    found_TD = attention.self_attention(qkv_T3D, 0.0)
    (gradient,) = torch.autograd.grad(found_TD.square().sum(), qkv_T3D)
    assert torch.isfinite(found_TD).all() and torch.isfinite(gradient).all() and not gradient[13:].any()


def test_the_mean_of_a_sequence_is_that_of_its_tokens_and_zero_for_filling() -> None:
    filling = filling_of(LENGTHS, 20, 8)
    hidden_TD = torch.randn(20, WIDTH, dtype=torch.float64, requires_grad=True)
    found_SD = mean_of_filled(hidden_TD, filling)
    expected = [part.mean(0) for part in hidden_TD[:13].split(LENGTHS[:4])]
    torch.testing.assert_close(found_SD[:4], torch.stack(expected))
    assert not found_SD[4:].any()
    found_SD[:4].sum().backward()
    gradient_T = torch.cat([torch.full((length,), 1 / length) for length in LENGTHS[:4]]).double()
    assert hidden_TD.grad is not None
    torch.testing.assert_close(hidden_TD.grad[:, 0], F.pad(gradient_T, (0, 7)))
