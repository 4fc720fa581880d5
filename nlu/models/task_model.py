"""An encoder with the head of a task.

Axes: T tokens, S sequences, U units, N rows to be labelled (examples or units), C outputs, D width.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.models.encoder import Encoded, Encoder, Inside
from nlu.models.head import Head
from nlu.models.layers.dropout import Dropout, active


class TaskModel(nn.Module):
    """`backbone`, dropout, `head`."""

    backbone: Encoder
    head: Head

    def __init__(self, backbone: Encoder, head: Head, layout: str):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.layout = layout
        # Set once, because a batch does not show whether it has pairs.
        backbone.layout = layout
        self.dropout = Dropout(backbone.head_dropout)
        self.wants = (head.wants,) if isinstance(head.wants, str) else head.wants
        self._inside: Inside | None = None
        self._seen: list[Encoded] = []

    @contextmanager
    def watching(self, inside: Inside) -> Iterator[list[Encoded]]:
        """Make the encoder also return `inside` in every forward pass of the block.

        Yields a list, to which each pass appends its result. For methods, whose passes are run by the task. Raises
        UserError for an encoder without attention layers.
        """
        if "inside" not in inspect.signature(self.backbone.encode).parameters:
            raise UserError(
                f"model is {type(self.backbone).__name__}, which has no attention layers, but the method needs "
                "hidden states or attention; choose a model that has them, such as bert or hf, or another method"
            )
        before = self._inside, self._seen
        self._inside, self._seen = inside, []
        try:
            yield self._seen
        finally:
            self._inside, self._seen = before

    def encode(self, batch: Batch, x_TD: Tensor | None = None) -> Encoded:
        """Return the float32 vectors that the head uses, after dropout; `x_TD` replaces the word vectors."""
        x_TD = self.backbone.embed(batch) if x_TD is None else x_TD
        encode = partial(self.backbone.encode, x_TD, batch, tokens="units" in self.wants, pooled="pooled" in self.wants)
        # Not passed as None: an encoder without attention layers lacks the parameter.
        found = encode() if self._inside is None else encode(inside=self._inside)
        if self._inside is not None:
            self._seen.append(found)
        read = Encoded()
        if found.pooled_SD is not None:
            pooled_SD = found.pooled_SD.float()
            read.pooled_SD = pooled_SD if getattr(self.head, "drops", False) else self.dropout(pooled_SD)
        if found.tokens_TD is not None:
            # Dropout after the selection draws no random numbers for tokens that the head does not read.
            read.units_UD = self._selected(found.tokens_TD, batch)
        return read

    def _selected(self, tokens_TD: Tensor, batch: Batch) -> Tensor:
        streams, units_U = active(), batch.units_U
        assert units_U is not None, "the target selects units"
        if streams is None or batch.windows_B is None:
            rows = streams.rows_at(units_U) if streams else None
            return self.dropout(tokens_TD.index_select(0, units_U).float(), rows)
        # Streams need ascending places. Units stand in the order of the text, its windows in the order of lengths.
        ascending_U, order_U = units_U.sort()
        selected_UD = self.dropout(tokens_TD.index_select(0, ascending_U).float(), streams.rows_at(ascending_U))
        return selected_UD.index_select(0, order_U.argsort())

    def forward(self, batch: Batch, x_TD: Tensor | None = None) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit of a batch that has units.

        The head computes in fp32 also under autocast: a bf16 logit has 8 bits, so that many examples would tie, and the
        head is too small to save time.
        """
        encoded = self.encode(batch, x_TD)
        with torch.autocast(batch.tokens_T.device.type, enabled=False):
            return self.head(encoded, batch)
