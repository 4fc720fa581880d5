"""Rows of the store to one packed batch: tokens side by side, no padding.

Axes: B examples of the batch, T tokens of all of them together, U units of all of them (tagging only).
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nlu.data.ragged import ranges, starts_of
from nlu.data.store import Examples


@dataclass
class Batch:
    """A packed batch; examples stand in order of length, so that equal lengths are neighbours."""

    examples_B: np.ndarray
    """index of each example in its set; stays on the host"""
    lengths: list[int]
    """tokens of each example, ascending; stays on the host, so that shapes cost no device sync"""
    tokens_T: Tensor
    segments_T: Tensor
    """0, or 1 in the second text of a pair"""
    positions_T: Tensor
    """place of each token in its own example"""
    starts_B: Tensor
    """place in T of each example's first token"""
    labels: Tensor
    """(B,) class numbers, or (U,) tag numbers"""
    units_U: Tensor | None = None
    """place in T of each unit's first token"""
    unit_counts_B: np.ndarray | None = None
    """units of each example that fit; stays on the host"""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens_T)

    def to(self, device: torch.device) -> Self:
        """Return the batch with its tensors on the device, copied without waiting."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            moved[item.name] = to_device(value, device) if isinstance(value, Tensor) else value
        return type(self)(**moved)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for it."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def collate(part: Examples, examples_B: np.ndarray, *, units: bool) -> Batch:
    """Gather examples of a set into a packed batch; `units=True` adds the places and tags of tagged units."""
    examples_B = examples_B[np.argsort(part.lengths_N[examples_B], kind="stable")]
    rows_B = part.rows_N[examples_B]
    stored = part.stored
    lengths_B = part.lengths_N[examples_B].astype(np.int64)
    starts_B = starts_of(lengths_B)
    positions_T = ranges(np.zeros_like(lengths_B), lengths_B)
    segments_T = positions_T >= np.repeat(stored.boundaries(rows_B), lengths_B)
    batch = Batch(
        examples_B,
        lengths_B.tolist(),
        torch.from_numpy(stored.tokens(rows_B).astype(np.int64)),
        torch.from_numpy(segments_T.astype(np.int64)),
        torch.from_numpy(positions_T),
        torch.from_numpy(starts_B),
        torch.from_numpy(part.labels_N[examples_B].astype(np.int64)),
    )
    if units:
        places, counts_B = stored.words(rows_B)
        tags, tag_counts_B = stored.tags(rows_B)
        batch.units_U = torch.from_numpy(places + np.repeat(starts_B, counts_B))
        batch.unit_counts_B = counts_B
        batch.labels = torch.from_numpy(tags[ranges(starts_of(tag_counts_B), counts_B)].astype(np.int64))
    return batch
