"""The model of a run in the form that others compute: padded batches, on the ELECTRA of transformers.

BERT's layout is ELECTRA's without a projection, and both store a layer alike, so one class holds every native encoder.
Axes: N texts, T tokens of the longest, C outputs, D width.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.encoding import Encoded
from nlu.data.ragged import starts_of
from nlu.inference.trained import Trained
from nlu.models.encoders.bert import Bert
from nlu.models.heads.linear import LinearHead

Inputs = dict[str, np.ndarray]
NAMES = ("input_ids", "attention_mask", "token_type_ids")
"""of the inputs, in their order; (N, T), int64"""


def require_native(trained: Trained, wanted: str) -> Bert:
    """Return the encoder. Raises UserError where a run's encoder or head is none that others can compute."""
    backbone = trained.model.backbone
    if not isinstance(backbone, Bert):
        raise UserError(
            f"format is {wanted}, but the encoder of this run is {type(backbone).__name__}, which only nlu computes; "
            "use nlu.predict, or train model=bert"
        )
    return backbone


def require_linear(trained: Trained, wanted: str) -> LinearHead:
    """Return the head. Raises UserError where it is not one linear layer."""
    head = trained.model.head
    if not isinstance(head, LinearHead):
        other = "a CRF" if trained.target.kind == "tags" else "a head over two vectors"
        remedy = "format=sentence_transformers writes its encoder" if other != "a CRF" else "use nlu.predict"
        raise UserError(f"format is {wanted}, but the run has {other}, which this format does not know; {remedy}")
    return head


def transformers_config(trained: Trained, **more: Any) -> Any:
    """Return the configuration of the encoder as transformers reads it."""
    from transformers import ElectraConfig

    sizes = require_native(trained, "huggingface").sizes
    backend = trained.tokenizer.backend
    return ElectraConfig(
        vocab_size=trained.tokenizer.vocab_size, embedding_size=sizes["embedding_size"] or sizes["hidden_size"],
        hidden_size=sizes["hidden_size"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        intermediate_size=sizes["intermediate_size"], hidden_act=sizes["activation"],
        hidden_dropout_prob=sizes["dropout"], attention_probs_dropout_prob=sizes["attention_dropout"],
        max_position_embeddings=sizes["max_positions"], type_vocab_size=sizes["segment_types"],
        layer_norm_eps=sizes["layer_norm_eps"], initializer_range=sizes["initializer_range"],
        pad_token_id=backend.token_to_id("[PAD]") or 0, **more,
    )  # fmt: skip


def transformers_weights(backbone: Bert) -> dict[str, Tensor]:
    """Return the encoder's weights as ELECTRA's of transformers names them; the pooler is left out."""
    found = {}
    for name, value in backbone.state_dict().items():
        value = value.detach().float().cpu()
        if ".self.qkv." in name:
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                found[name.replace("qkv", part)] = piece.clone()
        elif not name.startswith("pooler."):
            found[name] = value.clone()
    return found


class Padded(nn.Module):
    """Token numbers to logits."""

    def __init__(self, trained: Trained, wanted: str):
        """Raises UserError for an encoder or a head that it cannot hold."""
        from transformers import ElectraModel

        super().__init__()
        backbone, head = require_native(trained, wanted), require_linear(trained, wanted)
        # The one attention that every exporter can follow.
        self.encoder = ElectraModel(transformers_config(trained, attn_implementation="eager"))
        load_exactly(self.encoder, transformers_weights(backbone))
        self.is_tagging = trained.target.kind == "tags"
        self.pooling = "none" if self.is_tagging else backbone.pooling
        self.pooler = copied_linear(backbone.pooler["dense"]) if backbone.pooler is not None else None  # type: ignore[arg-type]
        self.linear = own_unit(copied_linear(head.linear), trained)
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return logits: (N, C), or (N, T, C) of a tagger."""
        hidden_NTD = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state  # fmt: skip
        if self.pooling == "none":
            return self.linear(hidden_NTD)
        if self.pooling == "mean":
            mask_NT1 = attention_mask.unsqueeze(-1).to(hidden_NTD.dtype)
            return self.linear((hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1))
        first_ND = hidden_NTD[:, 0]
        return self.linear(first_ND if self.pooler is None else torch.tanh(self.pooler(first_ND)))


def copied_linear(linear: nn.Linear) -> nn.Linear:
    """Return a plain linear layer with the same weights, in fp32 on the host."""
    plain = nn.Linear(linear.in_features, linear.out_features)
    with torch.no_grad():
        plain.weight.copy_(linear.weight.detach().float().cpu())
        plain.bias.copy_(linear.bias.detach().float().cpu())
    return plain


def own_unit(linear: nn.Linear, trained: Trained) -> nn.Linear:
    """Have a layer that predicts a number give it in its own unit, and not on the scale of training."""
    if trained.target.kind == "number":
        target: Any = trained.target
        with torch.no_grad():
            linear.weight.mul_(target.sd)
            linear.bias.mul_(target.sd).add_(target.mean)
    return linear


def load_exactly(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load weights of which none may be missing or left over, but for buffers that the model makes itself."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    parameters = {name for name, _ in model.named_parameters()}
    lost = sorted(set(missing) & parameters) + list(unexpected)
    assert not lost, f"{lost[:3]} have no counterpart"


def padded_inputs(encoded: Encoded, pad: int) -> dict[str, np.ndarray]:
    """Return encoded rows as padded arrays by the names of the inputs; (N, T), int64."""
    lengths_N = encoded.lengths_N
    ids_NT = np.full((len(lengths_N), int(lengths_N.max())), pad, np.int64)
    mask_NT, types_NT = np.zeros_like(ids_NT), np.zeros_like(ids_NT)
    for row, (start, length) in enumerate(zip(starts_of(lengths_N), lengths_N, strict=True)):
        ids_NT[row, :length] = encoded.tokens[start : start + length]
        mask_NT[row, :length] = 1
        types_NT[row, encoded.boundary_N[row] : length] = 1
    return dict(zip(NAMES, (ids_NT, mask_NT, types_NT), strict=True))
