"""A post-norm transformer layer as one node of autograd, for training on a CPU.

As modules, a layer is about 25 nodes. Here both passes are written out, which saves a few percent of a step
(benchmarks/SPEED.md). They run the same operators on the same numbers in the same order as the modules, so results,
gradients and random numbers have the same bits, and which of both runs is not part of a run's configuration.

Axes: R rows of all tokens, Q rows with queries (R, or S if only the first token of each sequence has one), D width,
I inner width, C columns of queries, keys and values.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nlu.models.layers.activations import GRADIENTS, Activation
from nlu.models.layers.attention import AttentionInProducts, Passes
from nlu.models.layers.dropout import Dropout, dropout_mask
from nlu.models.layers.linear import FEW_OUTPUTS, Linear, min_rows
from nlu.models.layers.torch_private import is_plain, linear_product

aten = torch.ops.aten


@dataclass(frozen=True)
class Parts:
    """The modules of a layer."""

    containers: tuple[nn.Module, ...]
    """the layer, and the modules that only hold others"""
    linears: tuple[Any, Any, Any, Any]
    """queries, keys and values; the output projection of attention; both layers of the feed-forward network. An adapter
    may have replaced them"""
    dropouts: tuple[Any, Any]
    """before the residual sums of attention and of the feed-forward network"""
    norms: tuple[Any, Any]
    attention_dropout: float
    activation: Activation


def in_one_node(parts: Parts, hidden_RD: Tensor, attention: object, starts_S: Tensor | None) -> Tensor | None:
    """Return the output of a layer for all tokens, (R, D), or only for those at `starts_S`, (S, D); float32.

    It has the same bits as that of the modules, and so have the gradients; there is no second derivative. Linear layers
    compute in the precision of autocast. None if the modules must compute the layer:

    - something is between the modules that would be passed over (an adapter, a hook, a module of another class);
    - something looks into the modules: anomaly detection, a compiler, an export;
    - a weight is frozen or not float32;
    - rows or outputs are so few that linear layers pad them;
    - no gradient is asked for: without one, weights have the layout of the library's kernels;
    - the device is not a CPU.

    Layers that are computed again (`nlu.models.layers.recomputing`) keep to the modules too.
    """
    if not isinstance(attention, AttentionInProducts) or not may_be_one_node(parts, hidden_RD):
        return None
    if min(len(hidden_RD), len(hidden_RD if starts_S is None else starts_S)) < min_rows():
        return None
    training, operands = parts.containers[0].training, [each.operands(hidden_RD.device.type) for each in parts.linears]
    of_attention = attention.for_tokens if starts_S is None else attention.for_first_tokens
    dropout_p = [each.probability if each.training else 0.0 for each in parts.dropouts]
    passes = of_attention(parts.attention_dropout if training else 0.0)
    work = _Work(parts, passes, starts_S, dropout_p, operands)
    output: Tensor = _OneNode.apply(hidden_RD, work, *trained_of(parts))
    return output


def may_be_one_node(parts: Parts, hidden_RD: Tensor) -> bool:
    """Return whether nothing asks for the modules of a layer, as `in_one_node` explains, for any number of rows."""
    if hidden_RD.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    if torch.is_anomaly_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if not _are_known(parts):
        return False
    trained = trained_of(parts)
    return all(each is not None and each.requires_grad and each.dtype == torch.float32 for each in trained)


def trained_of(parts: Parts) -> list[Tensor]:
    """Return weight and bias of each linear layer, and then those of each norm."""
    return [each for module in (*parts.linears, *parts.norms) for each in (module.weight, module.bias)]


def _are_known(parts: Parts) -> bool:
    """Return whether the modules compute what is written out here."""
    return (
        all(type(each) is Linear and each.out_features > FEW_OUTPUTS for each in parts.linears)
        and all(type(each) is Dropout for each in parts.dropouts)
        and all(type(each) is nn.LayerNorm for each in parts.norms)
        and parts.activation in GRADIENTS
        and is_plain((*parts.containers, *parts.linears, *parts.dropouts, *parts.norms))
    )


@dataclass(frozen=True)
class _Work:
    """What both passes need beside tensors of the forward pass."""

    parts: Parts
    attention: Passes
    starts_S: Tensor | None
    dropout_p: list[float]
    operands: list[tuple[Tensor, Tensor]]
    """weight and bias of each linear layer in the precision of its product"""


class _OneNode(torch.autograd.Function):
    """Its tensors after `work` are the weight and the bias of each linear layer, and then those of each norm."""

    @staticmethod
    def forward(ctx: Any, hidden_RD: Tensor, work: _Work, *trained: Tensor) -> Tensor:
        parts, starts_S = work.parts, work.starts_S
        (qkv_CD, qkv_bias_C), mixing, inner, outer = work.operands
        low = qkv_CD.dtype
        input_RD = hidden_RD.to(low)
        if starts_S is None:
            residual_QD, asking_QD, query_QD = hidden_RD, None, None
            projected_RC = linear_product(input_RD, qkv_CD, qkv_bias_C)
        else:
            # Every token still needs a key and a value, but only the first ones a query.
            width = len(qkv_CD) // 3
            residual_QD = hidden_RD.index_select(0, starts_S)
            asking_QD = residual_QD.to(low)
            query_QD = linear_product(asking_QD, qkv_CD[:width], qkv_bias_C[:width])
            projected_RC = linear_product(input_RD, qkv_CD[width:], qkv_bias_C[width:])
        mixed_QC, of_attention = work.attention.forward(query_QD, projected_RC)
        first = _normed(linear_product(mixed_QC, *mixing), residual_QD, work.dropout_p[0], parts.norms[0])
        attended_QD = first.pop()
        inner_input_QD = attended_QD.to(low)
        inner_QI = linear_product(inner_input_QD, *inner)
        active_QI = parts.activation(inner_QI)
        second = _normed(linear_product(active_QI, *outer), attended_QD, work.dropout_p[1], parts.norms[1])
        output_QD = second.pop()
        ctx.work, ctx.rows, ctx.of_attention = work, len(hidden_RD), len(of_attention)
        weights = [weight for weight, _ in work.operands]
        norms = [trained[8], trained[9], trained[10], trained[11]]
        own = [input_RD, asking_QD, mixed_QC, inner_input_QD, inner_QI, active_QI]
        ctx.save_for_backward(*own, *first, *second, *weights, *norms, *of_attention)
        return output_QD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_QD: Tensor) -> tuple[Tensor | None, ...]:
        work: _Work = ctx.work
        saved = iter(ctx.saved_tensors)
        input_RD, asking_QD, mixed_QC, inner_input_QD, inner_QI, active_QI = (next(saved) for _ in range(6))
        first, second = ([next(saved) for _ in range(4)] for _ in range(2))
        qkv_CD, mixing_DC, inner_ID, outer_DI = (next(saved) for _ in range(4))
        first_norm, second_norm = ((next(saved), next(saved)) for _ in range(2))
        qkv, mixing, inner, outer = work.parts.linears

        to_sum_QD, *of_second_norm = _gradient_of_norm(gradient_QD, second, *second_norm)
        low_QD = _dropped(to_sum_QD, second[0]).to(qkv_CD.dtype)
        of_outer = outer.gradients((low_QD, active_QI))
        low_QI = GRADIENTS[work.parts.activation](low_QD @ outer_DI, inner_QI)
        of_inner = inner.gradients((low_QI, inner_input_QD))
        # What the residual sum passes on, plus what went through the feed-forward network.
        to_attended_QD = to_sum_QD.add_(low_QI @ inner_ID)

        to_residual_QD, *of_first_norm = _gradient_of_norm(to_attended_QD, first, *first_norm)
        low_QD = _dropped(to_residual_QD, first[0]).to(qkv_CD.dtype)
        of_mixing = mixing.gradients((low_QD, mixed_QC))
        to_query_QC, to_projected_RC, _ = work.attention.backward(list(saved), low_QD @ mixing_DC, ctx.rows)

        to_hidden_RD = None
        if to_query_QC is None or asking_QD is None:
            of_qkv = qkv.gradients((to_projected_RC, input_RD))
            if ctx.needs_input_grad[0]:
                to_hidden_RD = to_residual_QD.add_(to_projected_RC @ qkv_CD)
        else:
            width = to_query_QC.shape[1]
            of_qkv = qkv.gradients((to_query_QC, asking_QD), (to_projected_RC, input_RD))
            if ctx.needs_input_grad[0]:
                assert work.starts_S is not None, "as in `forward`"
                to_residual_QD.add_(to_query_QC @ qkv_CD[:width])
                to_hidden_RD = (to_projected_RC @ qkv_CD[width:]).float()
                to_hidden_RD.index_add_(0, work.starts_S, to_residual_QD)
        return to_hidden_RD, None, *of_qkv, *of_mixing, *of_inner, *of_outer, *of_first_norm, *of_second_norm


def _normed(projected_QD: Tensor, residual_QD: Tensor, probability: float, norm: nn.LayerNorm) -> list[Any]:
    """Return the mask of dropout, the residual sum, its means and deviations for each row, and last the normed sum."""
    mask_QD = dropout_mask(residual_QD, probability) if probability else None
    # The residual sum is float32, also of bf16 projections.
    if mask_QD is None:
        sum_QD = projected_QD + residual_QD
    else:
        sum_QD = (projected_QD * mask_QD).add_(residual_QD)
    normed_QD, mean_Q1, rstd_Q1 = torch.native_layer_norm(
        sum_QD, norm.normalized_shape, norm.weight, norm.bias, norm.eps
    )
    return [mask_QD, sum_QD, mean_Q1, rstd_Q1, normed_QD]


def _dropped(gradient_QD: Tensor, mask_QD: Tensor | None) -> Tensor:
    return gradient_QD if mask_QD is None else gradient_QD * mask_QD


def _gradient_of_norm(
    gradient_QD: Tensor, saved: list[Tensor], weight_D: Tensor, bias_D: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the sum before a norm, of its weight and of its bias."""
    _, sum_QD, mean_Q1, rstd_Q1 = saved
    found: tuple[Tensor, Tensor, Tensor] = aten.native_layer_norm_backward(
        gradient_QD, sum_QD, [sum_QD.shape[1]], mean_Q1, rstd_Q1, weight_D, bias_D, [True, True, True]
    )
    return found
