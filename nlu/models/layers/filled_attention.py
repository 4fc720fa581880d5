"""Attention, and means, over packed sequences with filling: plain operations for a compiler, of few shapes.

Weights of attention are written to memory, unlike in torch's own kernels, which drop weights by random numbers of the
batch, and in whose gradient the order of sums may differ each time. Here dropout depends on the example (`dropout.
TokenKeys`), and rows are gathered in both directions, so that no sum is in any order. Where a row is used many times,
its gradient is that of torch's embeddings (`rows_at`).

Axes: T tokens and S sequences, with filling, L the longest sequence of the shape, H heads, E width of a head, D = H *
E; Q queries of a sequence: L, or 1 if only first tokens have queries; C columns, V rows of a table, N places in it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.data.collate import Filling
from nlu.models.layers.dropout import dropped, hashed
from nlu.models.layers.local_attention import Blocks


class _Apart(torch.autograd.Function):
    """Packed rows (T, C) to rows by sequence (S, L, C); behind the end of a sequence any rows, without a gradient."""

    @staticmethod
    def forward(ctx: Any, packed_TC: Tensor, slots_SL: Tensor, slot_T: Tensor) -> Tensor:
        ctx.save_for_backward(slot_T)
        return packed_TC[slots_SL]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slot_T,) = ctx.saved_tensors
        return _packed(gradients[0], slot_T), None, None


class _Packed(torch.autograd.Function):
    """Rows by sequence (S, L, C) to packed rows (T, C); those of filling are zeros."""

    @staticmethod
    def forward(ctx: Any, apart_SLC: Tensor, slots_SL: Tensor, real_SL: Tensor, slot_T: Tensor) -> Tensor:
        ctx.save_for_backward(slots_SL, real_SL)
        return _packed(apart_SLC, slot_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slots_SL, real_SL = ctx.saved_tensors
        return gradients[0][slots_SL] * real_SL[:, :, None], None, None, None


def _packed(apart_SLC: Tensor, slot_T: Tensor) -> Tensor:
    return apart_SLC.flatten(0, 1)[slot_T.clamp_min(0)] * (slot_T >= 0)[:, None]


@torch.library.custom_op("nlu::gradient_of_rows", mutates_args=())
def _gradient_of_rows(gradient_NC: Tensor, places_N: Tensor, rows: int) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(gradient_NC, places_N, rows, -1, False)


@_gradient_of_rows.register_fake
def _(gradient_NC: Tensor, places_N: Tensor, rows: int) -> Tensor:
    return gradient_NC.new_empty(rows, gradient_NC.shape[1])


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_VC: Tensor, places_N: Tensor) -> Tensor:
        ctx.save_for_backward(places_N)
        ctx.rows = len(table_VC)
        return table_VC[places_N]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (places_N,) = ctx.saved_tensors
        return _gradient_of_rows(gradients[0], places_N, ctx.rows), None


def rows_at(table_VC: Tensor, places_N: Tensor) -> Tensor:
    """Return rows of a table, in which many places may be one row; (N, C).

    A compiler would make one operation out of the gradients of a table: on CUDA either atomic sums, whose order differs
    each time, or, as torch is asked for equal sums, index_put, which adds the rows of a place one after another. All
    tokens of a batch may have one segment. An operation that the compiler does not look into keeps torch's kernel,
    which adds them in parallel and in one order.
    """
    found: Tensor = _Rows.apply(table_VC, places_N)
    return found


def mean_of_filled(hidden_TD: Tensor, filling: Filling) -> Tensor:
    """Return the mean of each sequence's tokens, zeros for filling; (S, D)."""
    apart_SLD = _Apart.apply(hidden_TD, filling.slots_SL, filling.slot_T)
    sum_SD = (apart_SLD * _real(filling.slots_SL, filling.lengths_S)[:, :, None]).sum(1)
    return sum_SD / filling.lengths_S.clamp_min(1)[:, None]


def _real(slots_SL: Tensor, lengths_S: Tensor) -> Tensor:
    """Return which slots hold a token; (S, L)."""
    return torch.arange(slots_SL.shape[1], device=lengths_S.device) < lengths_S[:, None]


class FilledAttention:
    """Attention of a batch with filling, for the layers with so many heads; see `attention.Attention`."""

    def __init__(
        self, slots_SL: Tensor, lengths_S: Tensor, slot_T: Tensor, heads: int, keys_T: Tensor | None = None,
        reach: int | None = None,
    ):  # fmt: skip
        """`keys_T`: the random numbers of the layer (`dropout.TokenKeys`); None: nothing is dropped. `reach` is that of
        `attention.attention_over`."""
        self._slots_SL, self._slot_T, self._heads, self._keys_T = slots_SL, slot_T, heads, keys_T
        self._lengths_S, self._reach = lengths_S, reach
        self._real_SL = _real(slots_SL, lengths_S)

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for every token, zeros for filling; (T, D)."""
        keys_SL = None if self._keys_T is None else self._keys_T[self._slots_SL]
        mixed_SLD = self._mix(self._by_head(qkv_T3D, 3), dropout_p, keys_SL)
        return _Packed.apply(mixed_SLD, self._slots_SL, self._real_SL, self._slot_T)

    def first_token_attention(self, query_SD: Tensor, key_value_T2D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for the first token of each sequence; (S, D)."""
        query_SH1E = query_SD.view(len(query_SD), self._heads, 1, -1)
        keys_S1 = None if self._keys_T is None else self._keys_T[self._slots_SL[:, :1]]
        return self._mix((query_SH1E, *self._by_head(key_value_T2D, 2)), dropout_p, keys_S1).flatten(1)

    def _by_head(self, packed_TC: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the parts of the columns as (S, H, L, E) each."""
        apart_SLC = _Apart.apply(packed_TC, self._slots_SL, self._slot_T)
        return apart_SLC.unflatten(-1, (parts, self._heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def _mix(self, heads: tuple[Tensor, ...], dropout_p: float, keys_SQ: Tensor | None) -> Tensor:
        """Return (S, Q, D) of queries, keys and values by head."""
        query_SHQE, key_SHLE, value_SHLE = heads
        longest, blocks, columns = key_SHLE.shape[2], None, None
        if self._reach is not None:
            # From here on S are blocks of sequences, Q and L their queries and keys.
            blocks = Blocks(longest, self._reach)
            query_SHQE, key_SHLE, value_SHLE = (
                blocks.queries(query_SHQE), blocks.keys(key_SHLE), blocks.keys(value_SHLE),
            )  # fmt: skip
            keys_SQ = None if keys_SQ is None else blocks.queries(keys_SQ[:, None, :, None]).flatten(1)
            seen_S11L = blocks.seen(self._lengths_S)
            # The same whatever the shape, and so the cut, of the batch.
            columns = blocks.offsets(query_SHQE.device)
        else:
            # The first slot always: a softmax over nothing is not a number, also for filling, which nobody reads.
            seen_SL = self._real_SL | (torch.arange(longest, device=query_SHQE.device) == 0)
            seen_S11L = seen_SL[:, None, None]
        if not torch.is_grad_enabled():
            mixed_SHQE = F.scaled_dot_product_attention(query_SHQE, key_SHLE, value_SHLE, attn_mask=seen_S11L)
        else:
            scores_SHQL = (query_SHQE * query_SHQE.shape[-1] ** -0.5) @ key_SHLE.mT
            weights_SHQL = scores_SHQL.float().masked_fill(~seen_S11L, -torch.inf).softmax(-1)
            if dropout_p and keys_SQ is not None:
                heads_H = torch.arange(self._heads, dtype=torch.int32, device=keys_SQ.device)
                keys_SHQ = hashed(keys_SQ[:, None] + heads_H[:, None])
                weights_SHQL = dropped(weights_SHQL, dropout_p, keys_SHQ, columns)
            mixed_SHQE = weights_SHQL.to(value_SHLE.dtype) @ value_SHLE
        mixed_SHQE = mixed_SHQE if blocks is None else blocks.joined(mixed_SHQE)
        return mixed_SHQE.transpose(1, 2).flatten(2)
