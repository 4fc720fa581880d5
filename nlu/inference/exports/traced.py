"""The model of a run as a module over padded batches, which exporters can trace: native, of transformers, or TextCNN.

Axes: N texts, T tokens of the longest, C outputs, D width.
"""

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
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
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.layers.pooling import AttentionPooling, LayerPooling
from nlu.models.pruned_heads import kept_heads, of_heads

if TYPE_CHECKING:
    from transformers.utils import ModelOutput

LEAST = torch.finfo(torch.float32).min
"""the value of padding, since not every exporter supports minus infinity"""


class Padded(nn.Module):
    """The model of a run, from token numbers to logits."""

    def __init__(self, trained: Trained, wanted: str):
        """Raises UserError for an encoder or a head that is not supported."""
        super().__init__()
        self.head, backbone = own_head(trained, wanted), trained.model.backbone
        # A head over units, such as a tagger's, is applied to every token.
        is_tagging = "units" in trained.model.wants
        if isinstance(backbone, Bert):
            self.encoder: nn.Module = PaddedBert(trained, backbone, is_tagging, with_pruned=wanted == "tf_checkpoint")
        elif isinstance(backbone, HuggingFace):
            self.encoder = PaddedTransformers(backbone, is_tagging)
        elif isinstance(backbone, TextCnn):
            self.encoder = PaddedTextCnn(backbone, is_tagging)
        else:
            raise UserError(
                f"format is {wanted}, but the encoder of this run is {type(backbone).__name__}, which cannot be "
                "exported; use nlu.predict, or train model=bert, hf or textcnn"
            )
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

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return vectors of texts, (N, D), or of tokens, (N, T, D)."""
        segments = {"token_type_ids": token_type_ids} if self.has_segments else {}
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, **segments, **self.pooling.asked)
        pooled: Tensor = self.pooling(output, attention_mask)
        return pooled


class PaddedPooling(nn.Module):
    """`model.pooling` on padded batches, without the pooler of BERT."""

    def __init__(self, backbone: Bert | HuggingFace, is_tagging: bool):
        super().__init__()
        self.kind = "none" if is_tagging else backbone.pooling
        self.is_last = isinstance(backbone, HuggingFace) and backbone.token_of_text_is_last
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


class PaddedTextCnn(nn.Module):
    """TextCNN.

    Positions outside of a text are zero before each convolution, so that the texts of a pair, which share a row here,
    do not influence each other.
    """

    def __init__(self, backbone: TextCnn, is_tagging: bool):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(backbone.word_embeddings.weight.detach().float().cpu().clone())
        self.layers = deepcopy(backbone.layers).float().cpu()
        self.is_tagging, self.is_pair = is_tagging, backbone.layout == "pair"

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return vectors of texts, (N, D), of pairs, (N, 4D), or of tokens, (N, T, D)."""
        if self.is_tagging:
            return self._hidden(input_ids, attention_mask)
        if not self.is_pair:
            return self._best(input_ids, attention_mask)
        first_ND = self._best(input_ids, attention_mask * (1 - token_type_ids))
        second_ND = self._best(input_ids, attention_mask * token_type_ids)
        return torch.cat([first_ND, second_ND, (first_ND - second_ND).abs(), first_ND * second_ND], dim=1)

    def _hidden(self, input_ids: Tensor, mask_NT: Tensor) -> Tensor:
        real_N1T = mask_NT[:, None, :].float()
        hidden_NDT = self.words(input_ids).transpose(1, 2) * real_N1T
        for convolutions in self.layers:
            assert isinstance(convolutions, nn.ModuleList), "each layer has a convolution for each width"
            summed = torch.stack([convolution(hidden_NDT) for convolution in convolutions]).sum(0)
            hidden_NDT = F.gelu(summed) * real_N1T
        return hidden_NDT.transpose(1, 2)

    def _best(self, input_ids: Tensor, mask_NT: Tensor) -> Tensor:
        hidden_NTD = self._hidden(input_ids, mask_NT)
        # Positions outside of the text are 0 after the last convolution, and 0 may be larger than all values of the
        # text.
        best_ND = hidden_NTD.masked_fill(mask_NT[:, :, None] == 0, -torch.inf).amax(1)
        return best_ND.masked_fill(mask_NT.sum(1, keepdim=True) == 0, 0.0)


def _mean(hidden_NTD: Tensor, mask_NT: Tensor) -> Tensor:
    mask_NT1 = mask_NT.unsqueeze(-1).to(hidden_NTD.dtype)
    return (hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1)
