"""Shared by all exports: padded batches, and the weights of native encoders under their names in transformers' ELECTRA.

BERT is ELECTRA without a projection of embeddings, and the layers of both are equal, so one class can hold every native
encoder.
Axes: N texts, T tokens of the longest, C outputs, D width.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.arrays import starts_of
from nlu.data.store import EncodedRows
from nlu.data.targets import Number
from nlu.data.tokenizing import Tokenizer
from nlu.inference.trained import Trained
from nlu.losses.bce import Bce
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.modern import ModernBert
from nlu.models.encoders.static import Static
from nlu.models.formats.smaller_weights import kept_heads, with_zeros
from nlu.models.heads.linear import LinearHead
from nlu.models.heads.mlp import FUNCTIONS, MlpHead
from nlu.models.heads.transformers import TransformersHead

if TYPE_CHECKING:
    from transformers import ElectraConfig

Inputs = dict[str, np.ndarray]
NAMES = ("input_ids", "attention_mask", "token_type_ids")
"""the names of the inputs, in order; each (N, T), int64"""


def require_native(trained: Trained, wanted: str) -> Bert:
    """Return the encoder. Raises UserError unless it is one that other programs can compute."""
    backbone = trained.model.backbone
    if not isinstance(backbone, Bert):
        raise UserError(
            f"format is {wanted}, which only supports BERT and its family, but the encoder of this run is "
            f"{type(backbone).__name__}; {others_of(backbone)}"
        )
    return backbone


def others_of(backbone: object) -> str:
    """Return the formats that another encoder can be exported to."""
    if isinstance(backbone, HuggingFace | ModernBert):
        return "export it as huggingface, onnx or torchscript"
    if isinstance(backbone, Static):
        return "export it as model2vec, which sentence-transformers loads too, onnx or torchscript"
    return "export it as onnx or torchscript"


def own_linear(trained: Trained, wanted: str) -> nn.Linear:
    """Return a copy of the head's only layer; see `own_head`. Raises UserError unless it is one linear layer."""
    if isinstance(trained.model.head, MlpHead):
        raise UserError(
            f"format is {wanted}, but the run has a head of two layers, which this format does not support here; "
            "export it as onnx or torchscript"
        )
    if not isinstance(trained.model.head, LinearHead):
        raise _unsupported(trained, wanted)
    return own_output(trained, trained.model.head.linear)


def own_head(trained: Trained, wanted: str) -> nn.Module:
    """Return a copy of the head, in fp32 on the host, whose outputs can be used without the run (see `own_output`).

    Raises UserError for a head that is not made of linear layers over one vector.
    """
    head = trained.model.head
    if isinstance(head, TransformersHead):
        return OfTransformers(head, own_output(trained, head.get_submodule(head.last)))
    if isinstance(head, MlpHead):
        return TwoLayers(copied_linear(head.dense), head.activation, own_output(trained, head.linear))
    return own_linear(trained, wanted)


class TwoLayers(nn.Module):
    """out(activation(dense(x)))."""

    def __init__(self, dense: nn.Linear, activation: str, out: nn.Linear):
        super().__init__()
        self.dense, self.activation, self.out = dense, activation, out

    def forward(self, vectors: Tensor) -> Tensor:
        """Return (..., C) of vectors (..., D)."""
        logits: Tensor = self.out(FUNCTIONS[self.activation](self.dense(vectors)))
        return logits


class OfTransformers(nn.Module):
    """A head of transformers with plain layers, which exporters can trace."""

    def __init__(self, head: TransformersHead, last: nn.Linear):
        super().__init__()
        self.holder = deepcopy(head)
        self.holder.set_submodule(head.last, last)
        for module in self.holder.modules():
            if isinstance(module, nn.Linear):
                module.__class__ = nn.Linear
        self.is_sigmoid, self.is_tagging = head.is_sigmoid, not head.drops
        self.float().cpu()

    def forward(self, vectors: Tensor) -> Tensor:
        """Return (..., C) of vectors (..., D)."""
        given = vectors if self.is_tagging else vectors[:, None]
        logits: Tensor = self.holder.theirs(inputs_embeds=given).logits
        return logits.sigmoid() if self.is_sigmoid else logits


def own_output(trained: Trained, last: nn.Module) -> nn.Linear:
    """Return a copy of the last layer whose outputs can be used without the run.

    Numbers are in their original unit instead of the scale of training. With loss=bce, the first logit, which the run
    ignores, is set so that the largest logit gives the decision of the run.
    """
    assert isinstance(last, nn.Linear), "each head ends in one"
    linear = copied_linear(last)
    loss = getattr(trained.task, "loss", None)
    if isinstance(loss, Bce):
        with torch.no_grad():
            linear.weight[0] = 0.0
            linear.bias[0] = loss.logit_of_first
    if isinstance(target := trained.target, Number) and getattr(trained.model.head, "scale", None) is None:
        with torch.no_grad():
            linear.weight.mul_(target.sd)
            linear.bias.mul_(target.sd).add_(target.mean)
    return linear


def _unsupported(trained: Trained, wanted: str) -> UserError:
    other = "a CRF" if trained.target.kind == "tags" else "a head over two vectors"
    remedy = "format=sentence_transformers writes its encoder" if other != "a CRF" else "use nlu.predict"
    return UserError(f"format is {wanted}, but the run has {other}, which this format does not support; {remedy}")


def transformers_config(trained: Trained, **more: Any) -> "ElectraConfig":
    """Return the configuration of the encoder as transformers reads it."""
    from transformers import ElectraConfig

    sizes = require_native(trained, "huggingface").sizes
    return ElectraConfig(
        vocab_size=trained.tokenizer.vocab_size,
        embedding_size=sizes["embedding_size"] or sizes["hidden_size"],
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["intermediate_size"],
        hidden_act=sizes["activation"],
        # It refuses integers here.
        hidden_dropout_prob=float(sizes["dropout"]),
        attention_probs_dropout_prob=float(sizes["attention_dropout"]),
        max_position_embeddings=sizes["max_positions"],
        type_vocab_size=max(2, sizes["segment_types"]),
        layer_norm_eps=float(sizes["layer_norm_eps"]),
        initializer_range=float(sizes["initializer_range"]),
        pad_token_id=trained.tokenizer.pad_id,
        **more,
    )


def transformers_weights(backbone: Bert) -> dict[str, Tensor]:
    """Return the weights of the encoder, without those of its pooling, under their names in ELECTRA of transformers.

    Other programs have equally many heads in each layer, so heads that were pruned are zeros there.
    """
    found = {}
    heads, pruned = backbone.sizes["heads"], backbone.sizes["pruned_heads"]
    for name, value in _by_layer(backbone).items():
        value = value.detach().float().cpu()
        if name.startswith("encoder.layer."):
            kept = kept_heads(pruned, int(name.split(".")[2]), heads)
        # Here one matrix product computes queries, keys and values of a layer; ELECTRA has three layers.
        if ".self.qkv." in name:
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                found[name.replace("qkv", part)] = with_zeros(piece, kept, heads)
        elif name.endswith(".attention.output.dense.weight"):
            found[name] = with_zeros(value.t(), kept, heads).t().contiguous()
        elif not name.startswith(("pooler.", "pooling_module.")):
            found[name] = value.clone()
    return found


def _by_layer(backbone: Bert) -> dict[str, Tensor]:
    """Return the tensors of the encoder, those of repeated layers once for each layer, and with two segment types."""
    found: dict[str, Tensor] = {}
    for name, value in backbone.state_dict().items():
        if name.startswith("encoder.layer."):
            group, rest = name.removeprefix("encoder.layer.").split(".", 1)
            numbers = [n for n in range(backbone.sizes["layers"]) if backbone.group_of(n) == int(group)]
            found |= {f"encoder.layer.{number}.{rest}": value for number in numbers}
        elif name == "embeddings.token_type_embeddings.weight" and len(value) == 1:
            # The inputs of an export number the texts of a pair.
            found[name] = value.repeat(2, 1)
        else:
            found[name] = value
    return found


def copied_linear(linear: nn.Linear) -> nn.Linear:
    """Return a plain linear layer with the same weights, in fp32 on the host."""
    plain = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    plain.load_state_dict({name: value.float().cpu() for name, value in linear.state_dict().items()})
    return plain


def require_pooling(backbone: Bert | HuggingFace, wanted: str, fitting: Sequence[str]) -> None:
    """Raise UserError unless a format has the pooling of the run; `fitting` are those that it has."""
    if backbone.pooling not in fitting:
        what = {"pooler": "pooler of BERT"}.get(backbone.pooling, f"pooling by {backbone.pooling}")
        raise UserError(
            f"format is {wanted}, which lacks the {what}; train with model.pooling={' or '.join(fitting)}, or export "
            "the run as onnx or torchscript"
        )


def copied_pooler(backbone: Bert) -> nn.Linear | None:
    """Return a plain copy of BERT's pooler; None if the encoder has none."""
    if backbone.pooler is None:
        return None
    dense = backbone.pooler["dense"]
    assert isinstance(dense, nn.Linear), "the pooler is one layer"
    return copied_linear(dense)


def load_exactly(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load weights, of which none may be missing or left over, except for buffers that the model creates itself."""
    # Not strict: buffers such as position numbers are in no checkpoint, and the model makes them itself.
    missing, unexpected = model.load_state_dict(weights, strict=False)
    parameters = {name for name, _ in model.named_parameters()}
    lost = sorted(set(missing) & parameters) + list(unexpected)
    assert not lost, f"{lost[:3]} have no counterpart"


def write_config(path: Path, content: object) -> None:
    """Write a file of settings as other programs have it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def padded_inputs(encoded: EncodedRows, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Return rows that `tokenizer` has encoded as padded arrays by the names of the inputs; (N, T), int64."""
    lengths_N = encoded.lengths_N
    ids_NT = np.full((len(lengths_N), int(lengths_N.max())), tokenizer.pad_id, np.int64)
    mask_NT, types_NT = np.zeros_like(ids_NT), np.zeros_like(ids_NT)
    for row, (start, length) in enumerate(zip(starts_of(lengths_N), lengths_N, strict=True)):
        ids_NT[row, :length] = encoded.tokens[start : start + length]
        mask_NT[row, :length] = 1
        types_NT[row, encoded.boundary_N[row] : length] = tokenizer.has_segments
    return dict(zip(NAMES, (ids_NT, mask_NT, types_NT), strict=True))
