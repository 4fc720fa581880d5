"""Attention that depends on the offset of a key from a query: local attention, relative positions, ALiBi.

Axes: H heads, Q queries of a sequence (its first tokens), L its keys, O offsets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

OUTSIDE = torch.finfo(torch.float32).min / 2
"""score of a key outside the window; finite, because all keys of a padded query may be outside"""


@dataclass(frozen=True)
class Pattern:
    """A window (local attention), a bias of scores by offset, or both.

    The products are still computed for every pair of tokens, so a window saves no time.
    """

    window: int | None = None
    """a query attends to keys at most this many positions before or after it; None = to all"""
    bias_HO: Tensor | None = None
    """Added to the scores after scaling; O is odd. Column O // 2 + (position of the key - position of the query) has
    the bias; offsets outside the table use its first or last column. ALiBi and relative positions are such tables."""

    def added(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return the term that is added to the scores of the first queries of a sequence; (H or 1, Q, L), float32."""
        # One row of heads broadcasts over all of them.
        added_HQL = torch.zeros(1, queries, keys, device=device)
        if self.bias_HO is not None:
            added_HQL = self.bias_HO.float()[:, self.columns(queries, keys, device)]
        if self.window is None:
            return added_HQL
        return added_HQL.masked_fill(_offsets(queries, keys, device).abs() > self.window, OUTSIDE)

    def columns(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return the column of `bias_HO` for each query and key; (Q, L)."""
        assert self.bias_HO is not None
        count = self.bias_HO.shape[1]
        # Distances beyond the table share its outermost entries, as in models with relative positions.
        return (_offsets(queries, keys, device) + count // 2).clamp(0, count - 1)


def _offsets(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the position of each key minus that of each query; (Q, L)."""
    return torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
