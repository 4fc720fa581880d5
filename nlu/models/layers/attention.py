"""Self-attention over packed sequences.

Axes: T tokens of all sequences, B sequences, L the length of one, H heads, E width of a head, D = H * E; Q queries of a
sequence: L, or 1 if only first tokens have queries; N = sequences of a group * H.
"""

from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.models.layers.attention_in_one_kernel import AttentionInOneKernel
from nlu.models.layers.dropout import dropout
from nlu.models.layers.linear import with_rows


class Attention(Protocol):
    """softmax(q k / sqrt(E)) v within each sequence of a batch.

    The result of a sequence does not depend on other sequences; on a CPU not even in the last bit, where rows after
    those of the last sequence are ignored and come out as zeros.
    """

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for every token; (T, D)."""

    def first_token_attention(self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""


def attention_over(lengths: list[int], heads: int, device: torch.device) -> Attention:
    """Return the attention of a batch, for all layers; `lengths` must ascend, as in the batches of `collate`."""
    if device.type == "cuda":
        return AttentionInOneKernel(lengths, heads, device)
    return AttentionByLength(lengths, heads)


class AttentionByLength:
    """Attention on a CPU: sequences of the same length are computed together, so nothing is padded."""

    def __init__(self, lengths: list[int], heads: int):
        self._heads, self._tokens = heads, sum(lengths)
        self._groups = [(length, len(list(same))) for length, same in groupby(lengths)]

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for every token; (T, D)."""
        parts = [parts_BHLE.unbind(0) for parts_BHLE in self._by_head(qkv_T3D, 3)]
        return with_rows(self._mixed(parts, dropout_p), len(qkv_T3D))

    def first_token_attention(self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""
        queries = query_BD.split([count for _, count in self._groups])
        parts = [
            (query_BD.view(len(query_BD), self._heads, 1, -1), *key_value.unbind(0))
            for query_BD, key_value in zip(queries, self._by_head(key_value_T2D, 2), strict=True)
        ]
        return self._mixed(parts, dropout_p)

    def _by_head(self, packed_TC: Tensor, parts: int) -> list[Tensor]:
        """Return (parts, B, H, L, E) for each group."""
        # Not one slice for each group, since the gradient of a slice is as large as the whole.
        width = packed_TC.shape[1] // (parts * self._heads)
        groups = packed_TC[: self._tokens].split([count * length for length, count in self._groups])
        return [
            group.view(-1, length, parts, self._heads, width).permute(2, 0, 3, 1, 4)
            for group, (length, _) in zip(groups, self._groups, strict=True)
        ]

    def _mixed(self, groups: list[tuple[Tensor, ...]], dropout_p: float) -> Tensor:
        mixed, first = [], 0
        for query_BHQE, key_BHLE, value_BHLE in groups:
            count = len(query_BHQE)
            if torch.is_grad_enabled():
                mixed_BHQE = _attend(query_BHQE, key_BHLE, value_BHLE, dropout_p, first)
            else:
                mixed_BHQE = F.scaled_dot_product_attention(query_BHQE, key_BHLE, value_BHLE)
            mixed.append(mixed_BHQE.transpose(1, 2).reshape(count * query_BHQE.shape[2], -1))
            first += count
        return torch.cat(mixed)


def _attend(query_BHQE: Tensor, key_BHLE: Tensor, value_BHLE: Tensor, dropout_p: float, first: int) -> Tensor:
    """Return attention of the sequences from `first` on for training: torch's call drops weights by random numbers of
    the batch, and on a CPU its gradient in bf16 takes several times as long."""
    shape, heads = query_BHQE.shape, query_BHQE.shape[1]
    query_NQE, key_NLE, value_NLE = (each.flatten(0, 1) for each in (query_BHQE, key_BHLE, value_BHLE))
    scores_NQL = torch.bmm(query_NQE * shape[-1] ** -0.5, key_NLE.mT)
    # Softmax and dropout in fp32.
    weights_NQL = dropout(scores_NQL.softmax(-1, dtype=torch.float32), dropout_p, [heads] * shape[0], first)
    return torch.bmm(weights_NQL.to(value_NLE.dtype), value_NLE).view(shape)


def attention_weights(query_TD: Tensor, key_TD: Tensor, lengths: list[int], heads: int) -> list[Tensor]:
    """Return the attention weights of each sequence, before dropout.

    One tensor (H, L, L), float32, for each sequence, with a gradient; a row (query) adds up to 1.
    """
    found: list[Tensor] = []
    with torch.autocast(query_TD.device.type, enabled=False):
        for query_LD, key_LD in zip(query_TD.split(lengths), key_TD.split(lengths), strict=True):
            query_HLE, key_HLE = (
                rows_LD.float().view(len(rows_LD), heads, -1).transpose(0, 1) for rows_LD in (query_LD, key_LD)
            )
            found.append((query_HLE @ key_HLE.mT * query_HLE.shape[-1] ** -0.5).softmax(-1))
    return found
