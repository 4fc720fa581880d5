"""A post-norm transformer layer as one node of autograd with kernels in C between its products, for training on a CPU.

The formulas are those of `nlu.models.layers.layer_in_one_node`, from which results differ in the last bits; masks of
dropout are the same. The gradients of weights are sums over all rows of a batch, and all else is computed for each
sequence by itself, so it does not depend on the other sequences, not even in the last bit.

Axes: R rows of all tokens, Q rows with queries (R, or S if only the first token of each sequence has one), D width,
I inner width, C columns of queries, keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nlu.models.layers.compiled.training_kernels import (
    CompiledAttention,
    Normed,
    activated,
    sum_of_rows,
    times_slopes,
)
from nlu.models.layers.layer_in_one_node import Parts, may_be_one_node, trained_of
from nlu.models.layers.linear import min_rows, with_rows
from nlu.models.layers.torch_private import linear_product


class CompiledLayers:
    """The layers of a batch; `lengths` of its sequences, in the order of their tokens."""

    def __init__(self, lengths: Sequence[int]):
        self._lengths = list(lengths)
        self._attentions: dict[int, CompiledAttention] = {}
        self._last: tuple[Tensor, Tensor] | None = None
        """the output of the last layer, and the same in the precision of products"""

    def __call__(self, parts: Parts, heads: int, hidden_RD: Tensor, starts_S: Tensor | None) -> Tensor | None:
        """Return the output of a layer for all tokens, (R, D), or only for those at `starts_S`, (S, D); float32.

        None if the modules must compute it: in the cases of `in_one_node`, except for few rows.
        """
        if not may_be_one_node(parts, hidden_RD):
            return None
        training = parts.containers[0].training
        work = _Work(
            parts,
            self._attention_of(heads),
            starts_S,
            parts.attention_dropout if training else 0.0,
            [each.probability if each.training else 0.0 for each in parts.dropouts],
            [each.operands("cpu") for each in parts.linears],
            self._last[1] if self._last is not None and self._last[0] is hidden_RD else None,
        )
        output, low = _Compiled.apply(hidden_RD, work, *trained_of(parts))
        self._last = output, low if low.numel() else output.detach()
        return output

    def _attention_of(self, heads: int) -> CompiledAttention:
        """Return the attention of layers with so many heads."""
        if heads not in self._attentions:
            self._attentions[heads] = CompiledAttention(self._lengths, heads)
        return self._attentions[heads]


@dataclass(frozen=True)
class _Work:
    """What both passes need beside tensors of the forward pass."""

    parts: Parts
    attention: CompiledAttention
    starts_S: Tensor | None
    attention_dropout: float
    dropout_p: list[float]
    operands: list[tuple[Tensor, Tensor]]
    """weight and bias of each linear layer in the precision of its product"""
    low_RD: Tensor | None
    """the input in that precision, if it is there already"""

    def normed(self, number: int) -> Normed:
        """Return the first or the second norm of the layer."""
        rows = self.attention.lengths if self.starts_S is None else [1] * len(self.attention.lengths)
        return Normed(self.parts.norms[number], self.dropout_p[number], rows)


class _Compiled(torch.autograd.Function):
    """Its tensors after `work` are the weight and the bias of each linear layer, and then those of each norm.

    Returns the output, and the same in the precision of products, which has no gradient.
    """

    @staticmethod
    def forward(ctx: Any, hidden_RD: Tensor, work: _Work, *trained: Tensor) -> tuple[Tensor, Tensor]:
        parts, starts_S = work.parts, work.starts_S
        (qkv_CD, qkv_bias_C), mixing, inner, outer = work.operands
        rows = len(hidden_RD)
        # Products of few rows have another order of summation.
        hidden_RD = with_rows(hidden_RD, max(rows, min_rows())).contiguous()
        input_RD = hidden_RD.to(qkv_CD.dtype) if work.low_RD is None or len(hidden_RD) > rows else work.low_RD
        if starts_S is None:
            count, residual_QD, asking_QD, query_QD = rows, hidden_RD, None, None
            projected_RC = linear_product(input_RD, qkv_CD, qkv_bias_C)
        else:
            # Every token still needs a key and a value, but only the first ones a query.
            count, width = len(starts_S), len(qkv_CD) // 3
            residual_QD = with_rows(hidden_RD.index_select(0, starts_S), max(count, min_rows()))
            asking_QD = residual_QD.to(qkv_CD.dtype)
            query_QD = linear_product(asking_QD, qkv_CD[:width], qkv_bias_C[:width])
            projected_RC = linear_product(input_RD, qkv_CD[width:], qkv_bias_C[width:])
        mixed_QC, of_attention = work.attention.forward(query_QD, projected_RC, work.attention_dropout)
        first, second = work.normed(0), work.normed(1)
        attended_QD, inner_input_QD, of_first = first.forward(
            linear_product(mixed_QC, *mixing), residual_QD, with_low=True
        )
        assert inner_input_QD is not None, "asked for"
        active_QI, slopes_QI = activated(parts.activation, linear_product(inner_input_QD, *inner))
        # The last layer is followed by no product of this kind.
        output_QD, low_QD, of_second = second.forward(
            linear_product(active_QI, *outer), attended_QD, with_low=starts_S is None
        )
        ctx.work, ctx.rows, ctx.count = work, rows, count
        weights = [weight for weight, _ in work.operands]
        own = [input_RD, asking_QD, mixed_QC, inner_input_QD, slopes_QI, active_QI]
        ctx.save_for_backward(*own, *of_first, *of_second, *weights, *of_attention)
        low_QD = output_QD.new_empty(0) if low_QD is None or low_QD is output_QD else low_QD[:count]
        ctx.mark_non_differentiable(low_QD)
        return output_QD[:count], low_QD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_QD: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        work: _Work = ctx.work
        saved = iter(ctx.saved_tensors)
        input_RD, asking_QD, mixed_QC, inner_input_QD, slopes_QI, active_QI = (next(saved) for _ in range(6))
        of_first, of_second = ([next(saved) for _ in range(3)] for _ in range(2))
        qkv_CD, mixing_DC, inner_ID, outer_DI = (next(saved) for _ in range(4))
        qkv, mixing, inner, outer = work.parts.linears

        gradient_QD = with_rows(gradient_QD, len(mixed_QC))
        to_sum_QD, low_QD, to_outer_bias, *of_second_norm = work.normed(1).backward(of_second, gradient_QD, None)
        to_outer = outer.gradient_of_weight((low_QD, active_QI))
        low_QI = low_QD @ outer_DI
        to_inner_bias = times_slopes(low_QI, slopes_QI)
        to_inner = inner.gradient_of_weight((low_QI, inner_input_QD))
        # What the residual sum passes on, plus what went through the feed-forward network.
        to_residual_QD, low_QD, to_mixing_bias, *of_first_norm = work.normed(0).backward(
            of_first, to_sum_QD, low_QI @ inner_ID
        )
        to_mixing = mixing.gradient_of_weight((low_QD, mixed_QC))
        to_query_QC, to_projected_RC = work.attention.backward(list(saved), low_QD @ mixing_DC, work.attention_dropout)
        to_hidden_RD, wants_hidden = None, ctx.needs_input_grad[0]
        if to_query_QC is None or asking_QD is None:
            to_qkv, to_qkv_bias = qkv.gradient_of_weight((to_projected_RC, input_RD)), sum_of_rows(to_projected_RC)
            if wants_hidden:
                to_hidden_RD = to_residual_QD.add_(to_projected_RC @ qkv_CD)[: ctx.rows]
        else:
            width = to_query_QC.shape[1]
            to_qkv = qkv.gradient_of_weight((to_query_QC, asking_QD), (to_projected_RC, input_RD))
            to_qkv_bias = torch.cat([sum_of_rows(to_query_QC), sum_of_rows(to_projected_RC)])
            if wants_hidden:
                assert work.starts_S is not None, "as in `forward`"
                to_residual_QD.add_(to_query_QC @ qkv_CD[:width])
                to_hidden_RD = (to_projected_RC @ qkv_CD[width:]).float()[: ctx.rows]
                to_hidden_RD.index_add_(0, work.starts_S, to_residual_QD[: ctx.count])
        return (
            to_hidden_RD, None, to_qkv, to_qkv_bias, to_mixing, to_mixing_bias, to_inner, to_inner_bias, to_outer,
            to_outer_bias, *of_first_norm, *of_second_norm,
        )  # fmt: skip
