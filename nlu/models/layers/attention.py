"""Self-attention over packed sequences.

Axes: T tokens of all sequences, B sequences, L the length of one, H heads, E width of a head, D = H * E. In products
also R rows of all sequences and heads, each E wide; N = sequences of a group * H, Q queries of a sequence: L, or 1 if
only first tokens have queries. O offsets of a key from a query (`nlu.models.layers.pattern`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nlu.data.arrays import ranges, starts_of
from nlu.models.layers.attention_in_one_kernel import AttentionInOneKernel
from nlu.models.layers.dropout import dropout_mask
from nlu.models.layers.linear import with_aligned_rows
from nlu.models.layers.pattern import Pattern
from nlu.models.layers.torch_private import softmax_gradient

LENGTH_STEP = 8
MIN_MATRICES = 2


class Attention(Protocol):
    """softmax(q k / sqrt(E) + bias) v within each sequence of a batch.

    The result of a sequence does not depend on other sequences, not even in the last bit. Rows after those of the last
    sequence are padding: they are ignored, and their result is zero on a CPU and of no use, but finite, elsewhere.
    """

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float, pattern: Pattern | None = None) -> Tensor:
        """Return the result for every token; (T, D)."""

    def first_token_attention(
        self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float, pattern: Pattern | None = None
    ) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""


def attention_over(lengths: list[int], heads: int, device: torch.device) -> Attention:
    """Return the attention of a batch, for all layers; `lengths` must ascend, as in the batches of `collate`."""
    if device.type == "cuda":
        return AttentionInOneKernel(lengths, heads, device)
    return AttentionInProducts(lengths, heads)


class AttentionInProducts:
    """Attention by matrix products, for a CPU: products in the precision of the input, softmax and dropout in fp32.

    torch's call lacks a fast CPU kernel with dropout, and one for bf16: its fused kernel takes several times as long as
    these products.

    A sequence is padded to a multiple of LENGTH_STEP, which depends only on its length, and sequences of the same
    padded length are computed together: torch compiles its kernels for each new shape, so there should be few shapes.
    Padding repeats the first token of the sequence and has weight 0.
    """

    def __init__(self, lengths: list[int], heads: int):
        lengths_B = np.array(lengths, dtype=np.int64)
        padded_B = -(-lengths_B // LENGTH_STEP) * LENGTH_STEP
        self._groups = _groups(lengths_B, padded_B, heads)
        self._tokens = _Rows(lengths_B, padded_B, heads)
        # First tokens are sequences of one token without padding.
        ones_B = np.ones_like(lengths_B)
        self._firsts = _Rows(ones_B, ones_B, heads)

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float, pattern: Pattern | None = None) -> Tensor:
        """Return the result for every token; (T, D)."""
        return _Products.apply(None, qkv_T3D, pattern and pattern.bias_HO, self.for_tokens(dropout_p, pattern))

    def first_token_attention(
        self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float, pattern: Pattern | None = None
    ) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""
        bias_HO = pattern and pattern.bias_HO
        return _Products.apply(query_BD, key_value_T2D, bias_HO, self.for_first_tokens(dropout_p, pattern))

    def for_tokens(self, dropout_p: float, pattern: Pattern | None = None) -> "Passes":
        """Return both passes of `self_attention`, for a node of autograd that does more than attention."""
        return Passes(self._groups, self._tokens, self._tokens, False, dropout_p, pattern)

    def for_first_tokens(self, dropout_p: float, pattern: Pattern | None = None) -> "Passes":
        """Return both passes of `first_token_attention`."""
        return Passes(self._groups, self._firsts, self._tokens, True, dropout_p, pattern)


@dataclass(frozen=True)
class _Group:
    """Sequences of the same padded length."""

    tokens: slice
    """their rows, with one for each token and head"""
    firsts: slice
    """their rows, with one for each first token and head"""
    length: int
    first: int
    """the index of the first sequence in the batch"""
    bias_B11L: Tensor
    """added to scores: 0, or minus infinity for padding"""

    def all(self, rows_RE: Tensor) -> Tensor:
        """Return the matrices of all tokens; (N, L, E)."""
        return rows_RE[self.tokens].view(-1, self.length, rows_RE.shape[1])

    def asking(self, rows_RE: Tensor, first_only: bool) -> Tensor:
        """Return the matrices of the tokens with queries; (N, Q, E)."""
        return rows_RE[self.firsts][:, None] if first_only else self.all(rows_RE)


def _groups(lengths_B: np.ndarray, padded_B: np.ndarray, heads: int) -> list[_Group]:
    groups = []
    start = row = 0
    for length, same in groupby(padded_B.tolist()):
        stop = start + len(list(same))
        last_row = row + (stop - start) * heads * length
        is_padding_BL = np.arange(length) >= lengths_B[start:stop, None]
        bias_BL = torch.from_numpy(np.where(is_padding_BL, np.float32(-np.inf), np.float32(0)))
        groups.append(
            _Group(slice(row, last_row), slice(start * heads, stop * heads), length, start, bias_BL[:, None, None])
        )
        start, row = stop, last_row
    return groups


class _Rows:
    """Converts packed rows, with the heads side by side, to rows of one head each, and back.

    Rows of a head are ordered by sequence, then by head, then by position. If the columns have several parts (query,
    key, value), all rows of a part come before those of the next one.
    """

    def __init__(self, lengths_B: np.ndarray, padded_B: np.ndarray, heads: int):
        """`padded_B`: the padded length of each sequence."""
        sizes_B = padded_B * heads
        self._heads, self._count = heads, int(lengths_B.sum())
        self._head_R, place_R = np.divmod(ranges(np.zeros_like(sizes_B), sizes_B), np.repeat(padded_B, sizes_B))
        is_padding_R = place_R >= np.repeat(lengths_B, sizes_B)
        self._source_R = np.repeat(starts_of(lengths_B), sizes_B) + np.where(is_padding_R, 0, place_R)
        self._row_TH = np.empty((self._count, heads), dtype=np.int64)
        # The inverse of `_source_R` without its padding: where each packed row is among the rows of heads.
        self._row_TH[self._source_R[~is_padding_R], self._head_R[~is_padding_R]] = np.flatnonzero(~is_padding_R)
        self._padding = torch.from_numpy(np.flatnonzero(is_padding_R))
        self._sources: dict[int, Tensor] = {}
        self._rows: dict[int, Tensor] = {}

    def by_head(self, packed_TC: Tensor, parts: int) -> Tensor:
        """Return (parts, R, E) of rows with parts * H * E columns; padding repeats the first row of a sequence."""
        if parts not in self._sources:
            # A part of the columns is `heads` pieces of E columns, so a gather over pieces of that width picks head and
            # part at once.
            part_P1 = np.arange(parts)[:, None] * self._heads
            source_PR = self._source_R * (parts * self._heads) + self._head_R + part_P1
            self._sources[parts] = torch.from_numpy(source_PR.reshape(-1))
        packed_RE = packed_TC.reshape(-1, packed_TC.shape[1] // (parts * self._heads))
        return packed_RE.index_select(0, self._sources[parts]).view(parts, len(self._source_R), -1)

    def gradient_by_head(self, gradient_TD: Tensor) -> Tensor:
        """Return (R, E); the gradient of padding is zero, because its result is not used."""
        return self.by_head(gradient_TD, 1)[0].index_fill_(0, self._padding, 0)

    def packed(self, rows_PRE: Tensor, count: int) -> Tensor:
        """Return (count, parts * H * E); rows after those of the last sequence are zero."""
        parts, rows, width = rows_PRE.shape
        if parts not in self._rows:
            self._rows[parts] = torch.from_numpy((self._row_TH[:, None] + np.arange(parts)[:, None] * rows).reshape(-1))
        out = rows_PRE.new_empty((count, parts * self._heads * width))
        own = out[: self._count].view(-1, width)
        # Written into place, since concatenating rows with their padding would copy them once more.
        torch.index_select(rows_PRE.view(-1, width), 0, self._rows[parts], out=own)
        out[self._count :] = 0
        return out


@dataclass(frozen=True)
class Passes:
    """The forward and the backward pass of attention, without autograd."""

    groups: list[_Group]
    asking: _Rows
    tokens: _Rows
    first_only: bool
    dropout_p: float
    pattern: Pattern | None

    def forward(self, query_BD: Tensor | None, projected_TC: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return the result, and what `backward` needs; without `query_BD` the query is the first part of
        `projected_TC`."""
        parts_PRE = self.tokens.by_head(projected_TC, 3 if query_BD is None else 2)
        query_RE = parts_PRE[0] if query_BD is None else self.asking.by_head(query_BD, 1)[0]
        low, scale = query_RE.dtype, query_RE.shape[1] ** -0.5
        mixed_RE = torch.empty_like(query_RE)
        saved: list[Tensor | None] = [query_RE, parts_PRE]
        for group in self.groups:
            query_NQE, mixed_NQE = (group.asking(rows, self.first_only) for rows in (query_RE, mixed_RE))
            key_NLE, value_NLE = (group.all(rows) for rows in parts_PRE[-2:])
            if self.first_only:
                # With a single query, its row is not aligned for each sequence.
                scores_NQL = _product(with_aligned_rows(query_NQE), with_aligned_rows(key_NLE).mT)
            else:
                scores_NQL = _product(query_NQE, key_NLE.mT)
            scores_BHQL = scores_NQL.view(len(group.bias_B11L), -1, *scores_NQL.shape[1:])
            bias_BHQL = group.bias_B11L
            if self.pattern is not None:
                bias_BHQL = bias_BHQL + self.pattern.added(scores_NQL.shape[1], group.length, scores_NQL.device)
            weights_NQL = torch.add(bias_BHQL, scores_BHQL, alpha=scale).softmax(-1).view(scores_NQL.shape)
            mask_NQL = None
            if self.dropout_p:
                count = len(group.bias_B11L)
                mask_NQL = dropout_mask(weights_NQL, self.dropout_p, [len(weights_NQL) // count] * count, group.first)
            dropped_NQL = (weights_NQL if mask_NQL is None else weights_NQL * mask_NQL).to(low)
            if self.first_only:
                mixed_NQE.copy_(_product(dropped_NQL, with_aligned_rows(value_NLE))[..., : query_RE.shape[1]])
            else:
                _product(dropped_NQL, value_NLE, out=mixed_NQE)
            saved += [weights_NQL, mask_NQL, dropped_NQL]
        return self.asking.packed(mixed_RE[None], len(projected_TC if query_BD is None else query_BD)), saved

    def backward(
        self, saved: Sequence[Tensor | None], gradient_TD: Tensor, rows: int, wants_bias: bool = False
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Return the gradients of `query_BD`, if `forward` got one, of `projected_TC`, which has `rows` rows, and of
        the pattern's bias."""
        query_RE, parts_PRE, *of_groups = saved
        assert query_RE is not None and parts_PRE is not None, "by `forward`"
        gradient_RE = self.asking.gradient_by_head(gradient_TD)
        low, scale = query_RE.dtype, query_RE.shape[1] ** -0.5
        to_parts_PRE = torch.empty_like(parts_PRE)
        to_query_RE = torch.empty_like(query_RE) if self.first_only else to_parts_PRE[0]
        bias_HO = self.pattern.bias_HO if self.pattern is not None and wants_bias else None
        to_bias_HO = None if bias_HO is None else torch.zeros_like(bias_HO)
        # In groups of three, as `forward` has saved them.
        for group, of_group in zip(self.groups, zip(*[iter(of_groups)] * 3, strict=True), strict=True):
            weights_NQL, mask_NQL, dropped_NQL = of_group
            query_NQE, gradient_NQE, to_query_NQE = (
                group.asking(rows, self.first_only) for rows in (query_RE, gradient_RE, to_query_RE)
            )
            key_NLE, value_NLE = (group.all(rows) for rows in parts_PRE[-2:])
            to_key_NLE, to_value_NLE = (group.all(rows) for rows in to_parts_PRE[-2:])
            # In fp32, since the gradient of a softmax subtracts numbers of similar size.
            to_weights_NQL = _product(gradient_NQE, value_NLE.mT).float()
            if mask_NQL is not None:
                to_weights_NQL *= mask_NQL
            to_scores_NQL = softmax_gradient(to_weights_NQL, weights_NQL)
            if self.pattern is not None and to_bias_HO is not None:
                to_bias_HQL = to_scores_NQL.view(len(group.bias_B11L), -1, *to_scores_NQL.shape[1:]).sum(0)
                columns_QL = self.pattern.columns(to_scores_NQL.shape[1], group.length, to_scores_NQL.device)
                to_bias_HO.index_add_(1, columns_QL.view(-1), to_bias_HQL.flatten(1).to(to_bias_HO.dtype))
            low_NQL = (to_scores_NQL * scale).to(low)
            _product(low_NQL, key_NLE, out=to_query_NQE)
            _product(low_NQL.mT, query_NQE, out=to_key_NLE)
            _product(dropped_NQL.mT, gradient_NQE, out=to_value_NLE)
        to_query_BD = self.asking.packed(to_query_RE[None], len(gradient_TD)) if self.first_only else None
        return to_query_BD, self.tokens.packed(to_parts_PRE, rows), to_bias_HO


class _Products(torch.autograd.Function):
    """Attention as a node of autograd."""

    @staticmethod
    def forward(
        ctx: Any, query_BD: Tensor | None, projected_TC: Tensor, bias_HO: Tensor | None, passes: Passes
    ) -> Tensor:
        # The pattern holds the bias too; autograd needs it as an argument.
        ctx.passes, ctx.rows = passes, len(projected_TC)
        mixed, saved = passes.forward(query_BD, projected_TC)
        ctx.save_for_backward(*saved)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.passes.backward(ctx.saved_tensors, gradients[0], ctx.rows, ctx.needs_input_grad[2]), None


def _product(left_NIJ: Tensor, right_NJK: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the batched matrix product.

    torch splits a single matrix among threads, which changes the order of summation, so there are always at least two.
    """
    if len(left_NIJ) >= MIN_MATRICES:
        return torch.bmm(left_NIJ, right_NJK) if out is None else torch.bmm(left_NIJ, right_NJK, out=out)
    found = torch.bmm(left_NIJ.expand(MIN_MATRICES, -1, -1), right_NJK.expand(MIN_MATRICES, -1, -1))[:1]
    return found if out is None else out.copy_(found)


def attention_weights(
    query_TD: Tensor, key_TD: Tensor, lengths: list[int], heads: int, pattern: Pattern | None = None
) -> list[Tensor]:
    """Return the attention weights of each sequence, before dropout.

    One tensor (H, L, L), float32, for each sequence, with a gradient; a row (query) adds up to 1. `lengths` must
    ascend, as in the batches of `collate`.
    """
    found: list[Tensor] = []
    start = 0
    with torch.autocast(query_TD.device.type, enabled=False):
        for length, same in groupby(lengths):
            stop = start + len(list(same)) * length
            query_BHLE, key_BHLE = (
                rows[start:stop].float().view(-1, length, heads, rows.shape[1] // heads).transpose(1, 2)
                for rows in (query_TD, key_TD)
            )
            scores_BHLL = query_BHLE @ key_BHLE.mT * query_BHLE.shape[-1] ** -0.5
            if pattern is not None:
                scores_BHLL = scores_BHLL + pattern.added(length, length, scores_BHLL.device)
            found += scores_BHLL.softmax(-1).unbind(0)
            start = stop
    return found
