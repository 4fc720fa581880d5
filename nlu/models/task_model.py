"""An encoder with the head that a task puts on it.

Axes: T tokens, S sequences, U units, N rows to be labelled (examples or units), C outputs, D width.
"""

import dataclasses

import torch
from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import Head
from nlu.models.layers import noise
from nlu.models.layers.dropout import Dropout


class TaskModel(nn.Module):
    """`backbone`, dropout, `head`."""

    backbone: Encoder
    head: Head

    def __init__(self, backbone: Encoder, head: Head, layout: str):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.layout = layout
        # A batch does not show whether it holds pairs, so the layout is set once.
        backbone.layout = layout
        self.dropout = Dropout(backbone.head_dropout)

    def encode(self, batch: Batch, x_TD: Tensor | None = None) -> Encoded:
        """Return the float32 vectors that the head reads, after dropout; `x_TD` replaces the words' own vectors."""
        x_TD = self.backbone.embed(batch) if x_TD is None else x_TD
        if self.head.wants == "pooled":
            encoded = self.backbone.encode(x_TD, batch, pooled=True)
            assert encoded.pooled_SD is not None
            return dataclasses.replace(encoded, pooled_SD=self.dropout(encoded.pooled_SD.float()))
        encoded = self.backbone.encode(x_TD, batch, tokens=True)
        assert encoded.tokens_TD is not None and batch.units_U is not None
        # Dropout after the selection spends no random numbers on tokens that nobody reads.
        selected_UD = encoded.tokens_TD.index_select(0, batch.units_U).float()
        streams = noise.active()
        return Encoded(units_UD=self.dropout(selected_UD, streams.rows_at(batch.units_U) if streams else None))

    def forward(self, batch: Batch, x_TD: Tensor | None = None) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit of a tagging batch.

        The head computes in fp32 under autocast too: in bf16 a logit has 8 bits, in which many examples would tie, and
        its product is so small that nothing is saved.
        """
        encoded = self.encode(batch, x_TD)
        with torch.autocast(batch.tokens_T.device.type, enabled=False):
            return self.head(encoded, batch)
