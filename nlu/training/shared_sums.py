"""The sum of the gradients of ranks that share memory, and its norm, in one pass of each rank over a part of them.

The norm is defined by the part of each rank: the part is cut into pages, the norm of a page is float32, and squares are
added in float64, first over the pages of a part and then over parts, in order. Who computes a page does not matter. So
each part is divided among all ranks, by the numbers that they have to read: of a large table, few rows are not zero.
The norms of pages are in the shared memory too, and after a meeting every rank adds up all of them.

Axes: W ranks, P parameters, N pages of all stretches, and for each the numbers after its last page as one more.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from nlu.training.shared_lines import Place, runs
from nlu.training.shared_rows import PAGE, SharedRows, norms_of_pages

COST_OF_ROW = 4.0
"""of a number in a row of a large table, if that of others is 1: the whole pages of each row are measured"""
GRAIN = 16 * PAGE
"""the numbers at whose multiples a stretch is divided among ranks"""


@dataclass
class _Stretch:
    """Parameters of one part that lie beside one another and have a gradient."""

    start: int
    end: int
    slots: slice
    """its pages among those of all stretches"""


@dataclass
class _Plan:
    """What is computed if certain ranks have gradients for certain parameters."""

    parts: list[list[_Stretch]]
    """the stretches of each part"""
    keys: list[object]
    """of each parameter, the ranks that have a gradient; None: none has"""


class Sums:
    """Every rank calls `add`, then meets the others, and then may call `squares`."""

    def __init__(
        self,
        places: Sequence[Place],
        parts: Sequence[tuple[int, int]],
        gradients: list[Tensor],
        norms_N: Tensor,
        tables: Mapping[int, SharedRows],
        rank: int,
    ):
        """`gradients` are the lines of all ranks, `norms_N` has `count` numbers that all ranks see, and `tables` are
        those whose rows are told, by the number of their place."""
        self._places, self._parts, self._gradients, self._norms_N = places, parts, gradients, norms_N
        self._tables, self._rank = tables, rank
        self._plans: dict[bytes, _Plan] = {}
        self._plan: _Plan | None = None

    @staticmethod
    def count(parts: Sequence[tuple[int, int]], parameters: int) -> int:
        """Return the most norms that there can be."""
        return parts[-1][1] // PAGE + parameters + len(parts)

    @property
    def summed(self) -> Tensor:
        """The line of sums."""
        return self._gradients[0]

    def add(self, has_gradient_WP: np.ndarray) -> None:
        """Sum what this rank has to sum into the line of rank 0, and measure it."""
        key = has_gradient_WP.tobytes()
        if key not in self._plans:
            # Few: parameters without a gradient are the same in most steps.
            self._plans = {key: self._planned(has_gradient_WP)}
        self._plan = self._plans[key]
        known = {number: table for number, table in self._tables.items() if table.is_known}
        keys = list(self._plan.keys)
        # Each in a run of its own.
        for number in known:
            keys[number] = number
        for stretch in (each for part in self._plan.parts for each in part):
            start, end = self._own(stretch, known.values())
            for first, begin, stop in runs(self._places, keys, start, end):
                if first in known:
                    known[first].sum(self._gradients, begin, stop)
                else:
                    self._add_whole(np.flatnonzero(has_gradient_WP[:, first]), begin, stop)
            norms_N = norms_of_pages(self._gradients[0][start:end], [each.pages(start, end) for each in known.values()])
            begin = stretch.slots.start + (start - stretch.start) // PAGE
            # The numbers after the last page belong to the last rank.
            stop = stretch.slots.stop if end == stretch.end else begin + len(norms_N) - 1
            self._norms_N[begin:stop] = norms_N[: stop - begin]

    def _add_whole(self, ranks: Iterable[int], start: int, end: int) -> None:
        total, (first, *others) = self._gradients[0][start:end], ranks
        if first:
            total.copy_(self._gradients[first][start:end])
        for rank in others:
            total += self._gradients[rank][start:end]

    def squares(self) -> float:
        """Return the sum of all squares, equal on all ranks."""
        assert self._plan is not None, "`add` was called"
        total = 0.0
        for part in self._plan.parts:
            own = 0.0
            for stretch in part:
                squares_N = self._norms_N[stretch.slots].double().square()
                own += squares_N[:-1].sum().item() + squares_N[-1].item()
            total += own
        return total

    def _planned(self, has_gradient_WP: np.ndarray) -> _Plan:
        keys: list[object] = [tuple(each_W) if each_W.any() else None for each_W in has_gradient_WP.T]
        any_of = [None if key is None else True for key in keys]
        found, slot = [], 0
        for begin, stop in self._parts:
            stretches = []
            for _, start, end in runs(self._places, any_of, begin, stop):
                # One more for the numbers after the last page.
                slots = slice(slot, slot + (end - start) // PAGE + 1)
                stretches.append(_Stretch(start, end, slots))
                slot = slots.stop
            found.append(stretches)
        return _Plan(found, keys)

    def _own(self, stretch: _Stretch, tables: Collection[SharedRows]) -> tuple[int, int]:
        """Return what this rank sums of a stretch, from whole pages on."""
        places_N = np.arange(stretch.start, stretch.end, GRAIN)
        costs_N = (places_N - stretch.start).astype(float)
        for table in tables:
            costs_N -= places_N.clip(table.start, table.end)
            costs_N += COST_OF_ROW * table.numbers_before(places_N)
        costs_N -= costs_N[0]
        world_size = len(self._parts)
        cuts = np.searchsorted(costs_N, costs_N[-1] * np.arange(1, world_size) / world_size)
        places = [stretch.start, *places_N[cuts].tolist(), stretch.end]
        return places[self._rank], places[self._rank + 1]
