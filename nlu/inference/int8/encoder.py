"""A loaded BERT encoder in int8: its linear layers are replaced from outside, or all of its layers by one call of C."""

from typing import Any, cast

import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.inference.int8.layers import Layers
from nlu.inference.int8.linear import QuantizedLinear
from nlu.models.encoders.bert import Bert

LOWEST = {"gelu": -0.17, "gelu_new": -0.1701, "gelu_pytorch_tanh": -0.1701, "relu": 0.0}
"""a number that no result of an activation is below"""


def quantize(encoder: Bert, dtype: torch.dtype) -> None:
    """Hold the linear layers of all layers in int8, in place and for good; `dtype` is that of attention's inputs.

    Embeddings and their projection, norms, pooling and the softmax stay as they are.
    """
    layer: Any
    for layer in encoder.encoder["layer"].children():
        projections, dense = layer.attention.self, layer.attention.output.dense
        projections["qkv"] = QuantizedLinear(projections["qkv"], dtype=dtype)
        layer.attention.output.dense = QuantizedLinear(dense)
        layer.intermediate["dense"] = QuantizedLinear(layer.intermediate["dense"])
        layer.output.dense = QuantizedLinear(layer.output.dense, lowest=LOWEST[encoder.sizes["activation"]])


def compile_layers(encoder: Bert) -> None:
    """Hold the encoder in int8 and compute its layers in C, with attention in float32.

    Raises UserError if this machine cannot do that, or if the pooling reads the layers in between.
    """
    if encoder.pooling == "layers":
        raise UserError(
            "precision is int8_compiled, which computes all layers at once, but model.pooling is layers; set "
            "precision=int8"
        )
    quantize(encoder, torch.float32)
    layers = Layers(encoder)
    encoder.__class__ = CompiledBert
    cast(CompiledBert, encoder).in_c = layers


class CompiledBert(Bert):
    """A BERT in int8 whose layers are one call of C, where nothing needs a gradient or what is inside of layers."""

    in_c: Layers

    def _hidden(self, x_TD: Tensor, batch: Batch, *, first_only: bool, seen: Any = None) -> Tensor:
        """Return the last layer's vectors of all tokens, (T, D), or only of first tokens, (S, D)."""
        if seen is not None or torch.is_grad_enabled():
            return super()._hidden(x_TD, batch, first_only=first_only, seen=seen)
        own = self.embeddings
        types, differ = own.token_type_embeddings, self.has_segments and own.token_type_embeddings.num_embeddings > 1
        hidden_TD = x_TD + own.position_embeddings(batch.positions_T)
        hidden_TD += types(batch.segments_T) if differ else types.weight[0]
        self.in_c.normalize(hidden_TD)
        if self.embeddings_project is not None:
            hidden_TD = self.embeddings_project(hidden_TD)
        return self.in_c(hidden_TD, batch.lengths, first_only=first_only)
