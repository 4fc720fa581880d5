"""The model of a run as a module over padded batches, which exporters can trace: native, of transformers, or another.

Axes: N texts, T tokens of the longest, C outputs, D width.
"""

from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.inference.exports.modern import in_transformers
from nlu.inference.exports.padded import (
    copied_linear,
    copied_pooler,
    load_exactly,
    own_head,
    transformers_config,
    transformers_weights,
)
from nlu.inference.trained import Trained
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.static import Static
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.formats.smaller_weights import kept_heads, of_heads
from nlu.models.layers.pooling import AttentionPooling, LayerPooling

if TYPE_CHECKING:
    from transformers.utils import ModelOutput

LEAST = torch.finfo(torch.float32).min
"""the value of padding, since not every exporter supports minus infinity"""
OF_TENSORS = (TextCnn, Static)
"""encoders whose results do not pass through numbers of Python, so that a graph holds for any number of texts"""


def graph_of(trained: Trained, wanted: str) -> nn.Module:
    """Return a module from padded token numbers to logits, (N, C), or (N, T, C) for a tagger.

    It is a ScriptModule, unless the encoder is a native one or one of transformers. Raises UserError for a head that is
    not supported, and for an encoder of a user that cannot be traced.
    """
    trained = in_transformers(trained)
    backbone = trained.model.backbone
    if isinstance(backbone, Bert | HuggingFace):
        return Padded(trained, wanted)
    ids_NT, mask_NT, types_NT = example_of(trained)
    packed = Packed(trained, wanted)
    # The exports are compared with the run on real rows, which checks more than a second trace of the same example.
    if type(backbone) in OF_TENSORS:
        return torch.jit.trace(packed, (ids_NT, mask_NT, types_NT), check_trace=False)
    try:
        one = torch.jit.trace(packed, (ids_NT[:1], mask_NT[:1], types_NT[:1]), check_trace=False)
    except Exception as error:
        raise UserError(
            f"format is {wanted}, but {type(backbone).__name__} cannot be traced: {str(error).splitlines()[0]:.200}; "
            "write it with operators of torch (docs/exporting.md), or use nlu.predict"
        ) from error
    return torch.jit.script(EachText(one, packed.is_tagging))


def example_of(trained: Trained) -> tuple[torch.Tensor, ...]:
    """Return example inputs for tracing: two texts, the second one shorter."""
    ids_NT = torch.full((2, 9), trained.tokenizer.unknown_id)
    mask_NT = torch.ones_like(ids_NT)
    # Without padding in the example, an exporter could take a branch that ignores the mask.
    mask_NT[1, ids_NT.shape[1] * 2 // 3 :] = 0
    types_NT = torch.zeros_like(ids_NT)
    if trained.layout.name == "pair":
        types_NT[:, ids_NT.shape[1] // 3 :] = 1
    return ids_NT, mask_NT, types_NT


class Packed(nn.Module):
    """The model of a run, whatever its encoder: padded texts become a packed batch within the graph."""

    def __init__(self, trained: Trained, wanted: str):
        super().__init__()
        self.head = own_head(trained, wanted)
        self.model, self.is_tagging = deepcopy(trained.model).float().cpu(), "units" in trained.model.wants
        self.eval().requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits: (N, C), or (N, T, C) for a tagger."""
        # Nothing is added; an exporter would leave out an input that the encoder does not use.
        is_token_NT, lengths_N = (attention_mask + 0 * token_type_ids).bool(), attention_mask.sum(1)
        # While a module is traced, a size is a tensor, so that the graph holds for any number of texts and tokens.
        texts, longest = input_ids.size(0), input_ids.size(1)
        positions_T = torch.arange(longest).expand_as(input_ids)[is_token_NT]
        starts_N = lengths_N.cumsum(0) - lengths_N
        batch = Batch(
            np.zeros(1, np.int64), [longest], input_ids[is_token_NT], token_type_ids[is_token_NT], positions_T,
            starts_N, torch.arange(texts)[None], units_U=torch.arange(positions_T.size(0)),
        )  # fmt: skip
        encoded = self.model.encode(batch)
        logits: Tensor = self.head(encoded.units_UD if self.is_tagging else encoded.pooled_SD)
        if not self.is_tagging:
            return logits
        places_T = is_token_NT.flatten().nonzero().flatten()
        return (
            logits.new_zeros(texts * longest, logits.size(1)).index_copy(0, places_T, logits).view(texts, longest, -1)
        )


class EachText(nn.Module):
    """`Packed` for each row of a padded batch by itself; compiled by torch.jit.script, since the rows are a loop."""

    def __init__(self, one: nn.Module, is_tagging: bool):
        super().__init__()
        self.one, self.is_tagging = one, is_tagging

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits: (N, C), or (N, T, C) for a tagger."""
        found: list[Tensor] = []
        for row in range(input_ids.size(0)):
            length = int(attention_mask[row].sum())
            ids, mask, types = input_ids[row, :length], attention_mask[row, :length], token_type_ids[row, :length]
            logits = self.one(ids[None], mask[None], types[None])
            if self.is_tagging:
                logits = F.pad(logits, [0, 0, 0, input_ids.size(1) - length])
            found.append(logits)
        return torch.cat(found)


class Padded(nn.Module):
    """A native encoder or one of transformers with the head of a run, from token numbers to logits."""

    def __init__(self, trained: Trained, wanted: str):
        """Raises UserError for a head that is not supported."""
        super().__init__()
        self.head, backbone = own_head(trained, wanted), trained.model.backbone
        # A head over units, such as a tagger's, is applied to every token.
        is_tagging = "units" in trained.model.wants
        if isinstance(backbone, Bert):
            self.encoder: nn.Module = PaddedBert(trained, backbone, is_tagging, with_pruned=wanted == "tf_checkpoint")
        else:
            assert isinstance(backbone, HuggingFace), "asked by graph_of"
            self.encoder = PaddedTransformers(backbone, is_tagging)
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits: (N, C), or (N, T, C) for a tagger."""
        logits: Tensor = self.head(self.encoder(input_ids, attention_mask, token_type_ids))
        return logits


class PaddedBert(nn.Module):
    """A native encoder as ELECTRA of transformers."""

    def __init__(self, trained: Trained, backbone: Bert, is_tagging: bool, *, with_pruned: bool):
        """`with_pruned`: have zeros in the place of heads that were pruned, as `transformers_weights` has."""
        from transformers import ElectraModel

        super().__init__()
        # This is the only implementation of attention that every exporter can trace.
        self.inner = ElectraModel(transformers_config(trained, attn_implementation="eager"))
        load_exactly(self.inner, transformers_weights(backbone))
        if not with_pruned:
            _leave_out_pruned(self.inner, backbone)
        self.pooling = PaddedPooling(backbone, is_tagging)
        self.pooler = copied_pooler(backbone)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return vectors of texts, (N, D), or of tokens, (N, T, D)."""
        output = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **self.pooling.asked
        )
        pooled: Tensor = self.pooling(output, attention_mask)
        # A tagger may have a pooler that it does not use.
        return pooled if self.pooler is None or self.pooling.kind == "none" else torch.tanh(self.pooler(pooled))


def _leave_out_pruned(inner: nn.Module, backbone: Bert) -> None:
    """Replace the layers of ELECTRA that have zeros for heads that were pruned by smaller ones.

    Its attention takes as many heads as the rows of the matrices have.
    """
    heads = backbone.sizes["heads"]
    for number in backbone.sizes["pruned_heads"]:
        kept = kept_heads(backbone.sizes["pruned_heads"], number, heads)
        attention = inner.get_submodule(f"encoder.layer.{number}.attention")
        for place in ("self.query", "self.key", "self.value", "output.dense"):
            whole = attention.get_submodule(place)
            assert isinstance(whole, nn.Linear), "as in ELECTRA"
            weight, bias = whole.weight.detach(), whole.bias.detach()
            if place == "output.dense":
                weight = of_heads(weight.t(), kept, heads).t()
            else:
                weight, bias = (of_heads(rows, kept, heads) for rows in (weight, bias))
            small = nn.Linear(weight.shape[1], weight.shape[0])
            small.load_state_dict({"weight": weight.contiguous(), "bias": bias})
            attention.set_submodule(place, small)


class PaddedTransformers(nn.Module):
    """An encoder of transformers."""

    def __init__(self, backbone: HuggingFace, is_tagging: bool):
        super().__init__()
        # A copy, since the run itself is compared with the export and must keep its own kernel of attention.
        self.inner = deepcopy(backbone.inner)
        self.inner.set_attn_implementation("eager")  # type: ignore[operator]  # nn.Module types attributes as tensors
        self.has_segments = backbone.has_segments
        self.pooling = PaddedPooling(backbone, is_tagging)
        self.dense = None if is_tagging else deepcopy(backbone.dense)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return vectors of texts, (N, D), or of tokens, (N, T, D)."""
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, **segments, **self.pooling.asked)
        pooled: Tensor = self.pooling(output, attention_mask)
        return pooled if self.dense is None else self.dense(pooled)


class PaddedPooling(nn.Module):
    """`model.pooling` on padded batches, without the pooler of BERT."""

    def __init__(self, backbone: Bert | HuggingFace, is_tagging: bool):
        super().__init__()
        self.kind = "none" if is_tagging else backbone.pooling
        self.is_last = backbone.reads_last if isinstance(backbone, HuggingFace) else backbone.pooling == "last"
        self.layers = backbone.pooled_layers
        self.asked = {"output_hidden_states": True} if self.kind == "layers" else {}
        module = backbone.pooling_module
        self.dense = copied_linear(module.dense) if isinstance(module, (AttentionPooling, LayerPooling)) else None
        self.query = (
            nn.Parameter(module.query.detach().float().cpu().clone()) if isinstance(module, AttentionPooling) else None
        )

    def forward(self, output: "ModelOutput", mask_NT: Tensor) -> Tensor:
        """Return vectors of texts, (N, D), or of tokens, (N, T, D)."""
        hidden_NTD: Tensor = output["last_hidden_state"]
        if self.kind == "none":
            return hidden_NTD
        if self.kind == "mean":
            return _mean(hidden_NTD, mask_NT)
        is_padding_NT = mask_NT == 0
        if self.kind == "max":
            return hidden_NTD.masked_fill(is_padding_NT[:, :, None], LEAST).amax(1)
        if self.kind == "attention":
            assert self.dense is not None and self.query is not None
            score_NT = (torch.tanh(self.dense(hidden_NTD)) * self.query).sum(2)
            share_NT = score_NT.masked_fill(is_padding_NT, LEAST).softmax(1)
            return (share_NT[:, :, None] * hidden_NTD).sum(1)
        if self.kind == "layers":
            assert self.dense is not None
            # Some architectures have a norm after the last layer.
            after = [*output["hidden_states"][1:-1], hidden_NTD]
            joined = torch.cat([self._first(after[number], mask_NT) for number in self.layers], dim=1)
            return torch.tanh(self.dense(joined))
        return self._first(hidden_NTD, mask_NT)

    def _first(self, hidden_NTD: Tensor, mask_NT: Tensor) -> Tensor:
        """Return the vector of the token that stands for a text; (N, D)."""
        if not self.is_last:
            return hidden_NTD[:, 0]
        last_N11 = (mask_NT.sum(1) - 1)[:, None, None].expand(-1, 1, hidden_NTD.shape[2])
        return hidden_NTD.gather(1, last_N11)[:, 0]


def _mean(hidden_NTD: Tensor, mask_NT: Tensor) -> Tensor:
    mask_NT1 = mask_NT.unsqueeze(-1).to(hidden_NTD.dtype)
    return (hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1)
