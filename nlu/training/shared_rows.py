"""Rows of a large table's gradient that are not zero: only these are summed over ranks that share memory.

The gradient of a table of words is zero outside of the rows of a step's tokens, a few percent of it. Each rank tells
the others the rows of its own gradient, through memory that all see. Sums have the same bits as those of whole
gradients: adding 0 changes no number but -0, which is no sum of an embedding's gradients.

Axes: W ranks, V entries of the table, D width, N rows of a rank in ascending order, P pages of a line.
"""

import mmap

import numpy as np
import torch
from torch import Tensor, nn

from nlu.models.layers.reused import ReusedMemory, ReusedTable

PAGE = 1024
"""numbers of a page of memory"""
LEAST_NUMBERS = 1 << 20
"""of a table; in smaller ones little can be saved"""
MOST_ROWS = 0.25
"""the largest share of the rows of a table that are told; whole gradients are summed instead"""
UNKNOWN = -1


def is_large(parameter: nn.Parameter, memory: ReusedMemory | None) -> bool:
    """Return whether the rows of this parameter's gradient are worth telling; `memory` is that of its gradient."""
    return isinstance(memory, ReusedTable) and parameter.dim() == 2 and parameter.numel() >= LEAST_NUMBERS


def bytes_for(parameter: nn.Parameter, world_size: int) -> int:
    """Return the size of the memory for the rows of all ranks, a multiple of 64."""
    return world_size * _bytes_of_rank(parameter)


def _bytes_of_rank(parameter: nn.Parameter) -> int:
    return -(-(4 * (1 + int(MOST_ROWS * len(parameter)))) // 64) * 64


class SharedRows:
    """A table, and the rows of each rank. Every rank makes each call, `offer` before a meeting and the others after."""

    def __init__(
        self,
        parameter: nn.Parameter,
        start: int,
        own: ReusedTable,
        memory: mmap.mmap,
        offset: int,
        ranks: tuple[int, int],
    ):
        """`start`: of the table among the numbers of a line. `own`: the memory of this rank's gradient. `offset`: of
        `bytes_for` bytes in the memory. `ranks`: this one, and how many there are."""
        self.parameter, self.start, self._own = parameter, start, own
        self.width = parameter.shape[1]
        self._rank, world_size = ranks
        size = _bytes_of_rank(parameter)
        # The count, and then the rows.
        self._told = [np.frombuffer(memory, np.int32, size // 4, offset + rank * size) for rank in range(world_size)]
        self._rows_WN: list[np.ndarray] | None = None
        self.rows_of_all_N = np.zeros(0, np.int64)
        """the rows that any rank has, if they are known"""

    @property
    def end(self) -> int:
        return self.start + self.parameter.numel()

    @property
    def is_known(self) -> bool:
        """Whether the rows of all ranks are known in this step."""
        return self._rows_WN is not None

    def offer(self) -> None:
        """Tell the others the rows of this rank's gradient."""
        told, rows_N = self._told[self._rank], None
        if self.parameter.grad is not None:
            rows_N = self._own.rows_of(self.parameter.grad)
        own_N = None if rows_N is None else np.unique(rows_N.numpy())
        if own_N is None or len(own_N) >= len(told):
            told[0] = UNKNOWN
            return
        told[0] = len(own_N)
        told[1 : 1 + len(own_N)] = own_N

    def look(self) -> None:
        """See what all ranks have told. Afterwards rank 0 must expect sums in the memory of its gradient."""
        found = [told[1 : 1 + told[0]].astype(np.int64) if told[0] != UNKNOWN else None for told in self._told]
        known_WN = [rows_N for rows_N in found if rows_N is not None]
        self._rows_WN = known_WN if len(known_WN) == len(found) else None
        if self._rows_WN is not None:
            self.rows_of_all_N = np.unique(np.concatenate(self._rows_WN))
        if self._rank == 0:
            self._own.note(None if self._rows_WN is None else torch.from_numpy(self.rows_of_all_N))

    def sum(self, gradients: list[Tensor], start: int, end: int) -> None:
        """Add the numbers from `start` to `end` of all lines, within the table, to those of the first line, in the
        order of ranks. Requires `is_known`."""
        assert self._rows_WN is not None, "is_known was asked"
        first, last = -(-(start - self.start) // self.width), (end - self.start) // self.width
        inner = (
            slice(self.start + first * self.width, self.start + last * self.width) if first < last else slice(end, end)
        )
        # At both ends there may be a row of which another rank sums the rest.
        for numbers in (slice(start, inner.start), slice(inner.stop, end)):
            for gradient in gradients[1:]:
                gradients[0][numbers] += gradient[numbers]
        total_VD = gradients[0][inner].view(-1, self.width)
        for gradient, rows_N in zip(gradients[1:], self._rows_WN[1:], strict=True):
            begin, stop = np.searchsorted(rows_N, (first, first + len(total_VD)))
            own_N = torch.from_numpy(rows_N[begin:stop] - first)
            total_VD.index_add_(0, own_N, gradient[inner].view(-1, self.width).index_select(0, own_N))

    def numbers_before(self, places_N: np.ndarray) -> np.ndarray:
        """Return how many numbers of rows of all ranks lie before these places of a line. Requires `is_known`."""
        return self.width * np.searchsorted(self.start + self.width * self.rows_of_all_N, places_N)

    def pages(self, start: int, end: int) -> tuple[int, int, Tensor]:
        """Return which of the whole pages from `start` to `end` lie in the table, as (first, after
        the last), and those of them, (P,), of whose sum anything may not be zero. Requires `is_known`."""
        assert self._rows_WN is not None, "is_known was asked"
        first = max(0, -(-(self.start - start) // PAGE))
        last = max(first, (min(self.end, end) - start) // PAGE)
        begins_N = self.start - start + self.width * self.rows_of_all_N
        # Rows before these pages count for the first one, which does no harm.
        opens_N, closes_N = (
            (each // PAGE - first).clip(0, last - first) for each in (begins_N, begins_N + self.width - 1)
        )
        depth_P = np.zeros(last - first + 1, np.int64)
        np.add.at(depth_P, opens_N, 1)
        np.add.at(depth_P, np.minimum(closes_N + 1, last - first), -1)
        return first, last, torch.from_numpy(first + np.flatnonzero(depth_P.cumsum()[:-1]))


def norms_of_pages(numbers: Tensor, of_tables: list[tuple[int, int, Tensor]]) -> Tensor:
    """Return the norm of each page of these numbers, and as the last one that of the rest, (P + 1,).

    `of_tables`: ranges of pages, and the pages in each whose numbers may not all be zero.
    """
    whole = len(numbers) // PAGE * PAGE
    pages, norms_P = numbers[:whole].view(-1, PAGE), torch.zeros(whole // PAGE)
    begin = 0
    for first, last, used in [*sorted(of_tables, key=lambda each: each[0]), (len(pages), len(pages), torch.empty(0))]:
        norms_P[begin:first] = torch.linalg.vector_norm(pages[begin:first], dim=1)
        if len(used):
            norms_P[used] = torch.linalg.vector_norm(pages[used], dim=1)
        begin = max(begin, last)
    return torch.cat([norms_P, torch.linalg.vector_norm(numbers[None, whole:], dim=1)])
