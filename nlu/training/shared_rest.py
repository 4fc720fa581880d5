"""Rows of a large table that have never had a gradient: both moments are 0, and an update only decays the weights.

Most texts use a small part of a vocabulary. AdamW changes the weight w of a number without gradient and moments to
w (1 - lr * weight_decay) + (-0), and the moments not at all, so the bits are the same if moments and gradient are not
read. Rows are counted in blocks, since each stretch of them costs a call.

Axes: B blocks, N rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from nlu.training.shared_rows import SharedRows

BLOCK_ROWS = 128
"""a multiple of the numbers that torch's kernel computes together"""
VECTOR = 16
"""a multiple of the numbers that a processor computes together"""
LEAST_BLOCKS = 4
"""shorter stretches are updated like others, which takes less time than further calls"""


class Rest:
    """The blocks of a table that may have been touched. All ranks know the same."""

    def __init__(self, table: SharedRows):
        self.table = table
        self._block = BLOCK_ROWS * table.width
        self.is_touched_B = np.ones(-(-(table.end - table.start) // self._block), bool)

    def begin(self, moments: Sequence[Tensor]) -> None:
        """Find the blocks whose moments are 0, after these lines were written."""
        for number in range(len(self.is_touched_B)):
            start = self.table.start + number * self._block
            end = min(start + self._block, self.table.end)
            # As integers: -0 is not 0.
            self.is_touched_B[number] = any(bool(each[start:end].view(torch.int32).any()) for each in moments)

    def note(self) -> None:
        """Take notice of the gradients of a step, of which the ranks have told their rows."""
        if self.table.is_known:
            self.is_touched_B[self.table.rows_of_all_N // BLOCK_ROWS] = True
        else:
            self.is_touched_B[:] = True

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the stretches of a line that rest.

        They end at a whole vector: torch's kernel rounds the last numbers of a call in another way, and which blocks
        rest may differ after a restart.
        """
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self.is_touched_B, [True]])))
        for first, after in edges.reshape(-1, 2).tolist():
            if after - first >= LEAST_BLOCKS:
                start = self.table.start + first * self._block
                end = min(self.table.start + after * self._block, self.table.end)
                yield start, start + (end - start) // VECTOR * VECTOR


def divided(run: tuple[int, int, int], resting: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int, bool]]:
    """Yield a run of parameters in the stretches that rest, in ascending order, and those between them, as (first
    parameter, start, end, whether it rests)."""
    first, begin, stop = run
    for start, end in resting:
        start, end = max(start, begin), min(end, stop)
        if start >= end:
            continue
        if begin < start:
            yield first, begin, start, False
        yield first, start, end, True
        begin = end
    if begin < stop:
        yield first, begin, stop, False
