"""Sequences in blocks, for attention of each token to those at most `reach` places away; time and memory grow with the
length and not with its square.

A block has at least `reach` tokens, so its queries see keys of their own block and of the two beside it. A short
sequence is one block.

Axes: B sequences, L the longest, N blocks of a sequence, H heads, E width of a head, Q queries of a block, K keys that
are compared with them: Q of one block, else 3 Q.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 32
"""tokens of a block: products of fewer cost more than they save"""


class Blocks:
    """How sequences of up to `longest` tokens are cut."""

    def __init__(self, longest: int, reach: int):
        self._longest, self._reach = longest, reach
        size = max(reach, LEAST)
        self._is_one = longest <= 3 * size
        self._size = longest if self._is_one else size

    def queries(self, rows_BHLE: Tensor) -> Tensor:
        """Return the rows by block, (B * N, H, Q, E); behind the end of a sequence zeros."""
        if self._is_one:
            return rows_BHLE
        blocks_BHNQE = F.pad(rows_BHLE, (0, 0, 0, -self._longest % self._size)).unflatten(2, (-1, self._size))
        return blocks_BHNQE.transpose(1, 2).flatten(0, 1)

    def keys(self, rows_BHLE: Tensor) -> Tensor:
        """Return the rows of each block and of those beside it, (B * N, H, K, E); outside of a sequence zeros."""
        if self._is_one:
            return rows_BHLE
        padding = self._size, self._size + -self._longest % self._size
        blocks_BHMQE = F.pad(rows_BHLE, (0, 0, *padding)).unflatten(2, (-1, self._size))
        parts = blocks_BHMQE[:, :, :-2], blocks_BHMQE[:, :, 1:-1], blocks_BHMQE[:, :, 2:]
        return torch.cat(parts, dim=3).transpose(1, 2).flatten(0, 1)

    def joined(self, blocks: Tensor) -> Tensor:
        """Return the rows (B, H, L, E) of the blocks (B * N, H, Q, E)."""
        if self._is_one:
            return blocks
        count = -(-self._longest // self._size)
        return blocks.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)[:, :, : self._longest]

    def offsets(self, device: torch.device) -> Tensor:
        """Return how many places behind each query each key stands; (Q, K), int32."""
        places_Q = torch.arange(self._size, dtype=torch.int32, device=device)
        places_K = places_Q if self._is_one else torch.arange(
            -self._size, 2 * self._size, dtype=torch.int32, device=device
        )  # fmt: skip
        return places_K - places_Q[:, None]

    def seen(self, lengths_B: Tensor) -> Tensor:
        """Return which queries see which keys, for sequences of these lengths; (B * N, 1, Q, K)."""
        device = lengths_B.device
        offset_QK = self.offsets(device)
        first_N = torch.arange(0, self._longest, self._size, device=device)
        place_NQK = first_N[:, None, None] + torch.arange(self._size, device=device)[:, None] + offset_QK
        is_key_BNQK = (place_NQK >= 0) & (place_NQK < lengths_B[:, None, None, None])
        # Itself always: a softmax over nothing is not a number, also behind the end of a sequence.
        return ((offset_QK.abs() <= self._reach) & is_key_BNQK | (offset_QK == 0)).flatten(0, 1)[:, None]
