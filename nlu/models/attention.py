"""Self-attention over packed sequences.

Axes: T tokens of all sequences, Q queries (T, or B where only first tokens ask), B sequences, L the length of one,
H heads, E width of a head, D = H * E.
"""

from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.data.collate import to_device
from nlu.models.dropout import dropout_mask
from nlu.models.linear import with_rows

MIN_QUERIES = 4


def attend(
    query_QD: Tensor, key_value_T2D: Tensor, *, lengths: list[int], heads: int, dropout_p: float, first_only: bool
) -> Tensor:
    """Return softmax(q k / sqrt(E)) v of every sequence with itself; (Q, D).

    `lengths` must ascend, as `collate` lays batches out: sequences of equal length are neighbours and are computed
    together at exactly their length. So nothing is padded, no mask is needed, and no sequence can influence
    another's result, not even its rounding. With `first_only` there is one query for each sequence, its first token.
    Rows after those of the last sequence belong to none; they take no part and come out as zeros.
    """
    if query_QD.is_cuda:
        return _attend_padded(query_QD, key_value_T2D, lengths, heads, dropout_p, first_only)
    groups = _groups(lengths)
    if dropout_p or query_QD.dtype != torch.float32:
        return _AttendInProducts.apply(query_QD, key_value_T2D, groups, heads, dropout_p, first_only)
    queries = _by_heads(query_QD, groups, heads, 1, first_only)
    keys_values = _by_heads(key_value_T2D, groups, heads, 2)
    outputs = [_attend_to_equals(query[0], key_value) for query, key_value in zip(queries, keys_values, strict=True)]
    mixed_QD = torch.cat([mixed.transpose(1, 2).reshape(-1, query_QD.shape[1]) for mixed in outputs])
    return with_rows(mixed_QD, len(query_QD))


def _groups(lengths: list[int]) -> list[tuple[int, int]]:
    """Return (length, sequences of that length) in the order of the batch."""
    return [(length, len(list(same))) for length, same in groupby(lengths)]


def _attend_to_equals(query_BHLE: Tensor, key_2BHLE: Tensor) -> Tensor:
    """Attention among sequences of one length.

    With three queries or fewer the matrix library's order of summation depends on the number of threads, so there are
    always MIN_QUERIES.
    """
    rows = query_BHLE.shape[2]
    if rows < MIN_QUERIES:
        query_BHLE = F.pad(query_BHLE, (0, 0, 0, MIN_QUERIES - rows))
    return F.scaled_dot_product_attention(query_BHLE, key_2BHLE[0], key_2BHLE[1])[:, :, :rows]


class _AttendInProducts(torch.autograd.Function):
    """Attention group by group in plain matrix products, for a CPU.

    The library's call there has no fast kernel with dropout, and none in bf16: its fused one takes several times as
    long as these products. They are in the input's precision, softmax and dropout in fp32. N = sequences of a group
    * H.
    """

    @staticmethod
    def forward(
        ctx: Any, query_QD: Tensor, key_value_T2D: Tensor, groups: list[tuple[int, int]], heads: int, dropout_p: float,
        first_only: bool,
    ) -> Tensor:  # fmt: skip
        low, scale = query_QD.dtype, (query_QD.shape[1] // heads) ** -0.5
        mixed_QD = _empty(query_QD.shape, groups, first_only, low)
        saved: list[Tensor | None] = []
        for query, key_value, mixed in zip(
            _by_heads(query_QD, groups, heads, 1, first_only), _by_heads(key_value_T2D, groups, heads, 2),
            _by_heads(mixed_QD, groups, heads, 1, first_only), strict=True,
        ):  # fmt: skip
            query_NLE, key_NLE, value_NLE = (part.flatten(0, 1) for part in (query[0], *key_value))
            weights_NLL = (torch.bmm(query_NLE, key_NLE.transpose(1, 2)).float() * scale).softmax(-1)
            mask_NLL = dropout_mask(weights_NLL, dropout_p) if dropout_p else None
            dropped_NLL = (weights_NLL if mask_NLL is None else weights_NLL * mask_NLL).to(low)
            mixed.copy_(torch.bmm(dropped_NLL, value_NLE).view(mixed.shape))
            saved += [query_NLE, key_NLE, value_NLE, weights_NLL, mask_NLL, dropped_NLL]
        ctx.save_for_backward(*saved)
        ctx.layout, ctx.key_value_shape = (groups, heads, first_only), key_value_T2D.shape
        return mixed_QD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_QD,) = gradients
        groups, heads, first_only = ctx.layout
        low, scale = gradient_QD.dtype, (gradient_QD.shape[1] // heads) ** -0.5
        to_query_QD = _empty(gradient_QD.shape, groups, first_only, low)
        to_key_value_T2D = _empty(ctx.key_value_shape, groups, False, low)
        saved_by_group = zip(*[iter(ctx.saved_tensors)] * 6, strict=True)
        for gradient, to_query, to_key_value, saved in zip(
            _by_heads(gradient_QD, groups, heads, 1, first_only), _by_heads(to_query_QD, groups, heads, 1, first_only),
            _by_heads(to_key_value_T2D, groups, heads, 2), saved_by_group, strict=True,
        ):  # fmt: skip
            query_NLE, key_NLE, value_NLE, weights_NLL, mask_NLL, dropped_NLL = saved
            gradient_NLE = gradient[0].flatten(0, 1)
            to_weights_NLL = torch.bmm(gradient_NLE, value_NLE.transpose(1, 2)).float()
            if mask_NLL is not None:
                to_weights_NLL *= mask_NLL
            to_scores_NLL = torch._softmax_backward_data(to_weights_NLL, weights_NLL, -1, torch.float32)
            low_NLL = (to_scores_NLL * scale).to(low)
            to_query.copy_(torch.bmm(low_NLL, key_NLE).view(to_query.shape))
            to_key_value[0].copy_(torch.bmm(low_NLL.transpose(1, 2), query_NLE).view(to_key_value[0].shape))
            to_key_value[1].copy_(torch.bmm(dropped_NLL.transpose(1, 2), gradient_NLE).view(to_key_value[1].shape))
        return to_query_QD, to_key_value_T2D, None, None, None, None


def _empty(shape: torch.Size, groups: list[tuple[int, int]], first_only: bool, dtype: torch.dtype) -> Tensor:
    """Return memory for the rows of all groups; rows after them are zero."""
    out = torch.empty(shape, dtype=dtype)
    out[sum(count if first_only else length * count for length, count in groups) :] = 0
    return out


def _by_heads(
    rows_RC: Tensor, groups: list[tuple[int, int]], heads: int, parts: int, first_only: bool = False
) -> list[Tensor]:
    """Return a view (parts, B, H, L, E) of each group's rows, whose columns are `parts` * H * E."""
    sizes = [(1 if first_only else length, count) for length, count in groups]
    rows = [length * count for length, count in sizes]
    pieces = rows_RC[: sum(rows)].split(rows)
    return [
        piece.view(count, length, parts, heads, -1).permute(2, 0, 3, 1, 4)
        for (length, count), piece in zip(sizes, pieces, strict=True)
    ]


def _attend_padded(
    query_QD: Tensor, key_value_T2D: Tensor, lengths: list[int], heads: int, dropout_p: float, first_only: bool
) -> Tensor:
    """The same in one kernel call, padded to the longest sequence inside attention only.

    On an accelerator one masked call costs less than a call for each length.
    """
    device = query_QD.device
    count, longest, tokens = len(lengths), max(lengths), sum(lengths)
    key_value_T2D = key_value_T2D[:tokens]
    lengths_B = to_device(torch.tensor(lengths), device)
    real_BL = torch.arange(longest, device=device) < lengths_B[:, None]
    ends_B = lengths_B.cumsum(0)
    padding_before_B = torch.arange(count, device=device) * longest - (ends_B - lengths_B)
    # The number of tokens is known, so that nothing here waits for the device.
    padding_before_T = torch.repeat_interleave(padding_before_B, lengths_B, output_size=len(key_value_T2D))
    place_T = torch.arange(len(key_value_T2D), device=device) + padding_before_T
    width = key_value_T2D.shape[-1]
    padded = key_value_T2D.new_zeros(count * longest, width).index_copy(0, place_T, key_value_T2D)
    key_2BHLE = padded.view(count, longest, 2, heads, -1).permute(2, 0, 3, 1, 4)
    if first_only:
        query_BHLE = query_QD.view(count, 1, heads, -1).transpose(1, 2)
    else:
        query = query_QD.new_zeros(count * longest, width // 2).index_copy(0, place_T, query_QD[:tokens])
        query_BHLE = query.view(count, longest, heads, -1).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(
        query_BHLE, key_2BHLE[0], key_2BHLE[1], attn_mask=real_BL[:, None, None, :], dropout_p=dropout_p
    )
    flat = mixed.transpose(1, 2).reshape(-1, width // 2)
    return flat if first_only else with_rows(flat.index_select(0, place_T), len(query_QD))
