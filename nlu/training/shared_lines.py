"""The memory that the ranks of a machine share, and the places of parameters in it.

The memory has a line of numbers for each kind of tensor: gradients of each rank, weights, both moments, averages.
Parameters have the same place in all of them, those of a group of the optimizer beside one another, so that a rank
updates many of them in one call. After the lines there is room for other numbers, such as the rows of large tables.

Axes: W ranks, P parameters.
"""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.training.shared_memory import floats_in
from nlu.training.shared_rows import PAGE

ALIGNED = 16
"""numbers of a line of a cache, at whose multiples parameters and parts begin"""
VECTORS = 32
"""numbers that torch's kernels compute together; those after the last multiple may be rounded in another way"""
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Place:
    """A parameter in the shared memory."""

    parameter: nn.Parameter
    group: dict[str, Any]
    """of the optimizer"""
    start: int
    """its first number in each line"""
    gradient: Tensor
    """of this rank"""
    summed: Tensor
    """the gradient of all ranks"""
    moments: dict[str, Tensor]
    step: Tensor
    """its number of updates, in memory of this rank"""

    @property
    def end(self) -> int:
        return self.start + self.parameter.numel()


def runs(places: Sequence[Place], keys: Sequence[object], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the stretches from `start` to `end` of a line whose parameters have equal keys, as (first parameter, start,
    end); those of the key None are left out."""
    open_run: tuple[int, int, int] | None = None
    for number, (place, key) in enumerate(zip(places, keys, strict=True)):
        begin, stop = max(place.start, start), min(place.end, end)
        if begin >= stop:
            continue
        if open_run is not None and key is not None and keys[open_run[0]] == key:
            # With the few unused numbers between two parameters, which stay 0.
            open_run = open_run[0], open_run[1], stop
            continue
        if open_run is not None:
            yield open_run
        open_run = None if key is None else (number, begin, stop)
    if open_run is not None:
        yield open_run


class Layout:
    """Where everything lies in the memory, before it exists."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, world_size: int, has_average: bool
    ):
        """`named`: all that the optimizer trains."""
        self._groups = {id(one): group for group in optimizer.param_groups for one in group["params"]}
        order = list(map(id, optimizer.param_groups))
        self.named = sorted(named.items(), key=lambda each: order.index(id(self._groups[id(each[1])])))
        """stable, so within a group they are in the order of the model"""
        self.starts, end = [], 0
        for _, parameter in self.named:
            self.starts.append(end)
            end += up(parameter.numel(), ALIGNED)
        self.world_size, self._has_average = world_size, has_average
        self._count = up(max(1, end), PAGE)
        # Parts of equal length that begin at lines of the cache.
        part = up(-(-end // world_size), ALIGNED)
        self.parts = [(min(end, part * rank), min(end, part * (rank + 1))) for rank in range(world_size)]
        """the start and the end of the part of each rank; the norm of a gradient is the sum of those of parts"""
        self.size = 4 * self._count * (world_size + 3 + has_average)
        """bytes"""

    def reserve(self, size: int) -> int:
        """Return the offset of so many bytes after the lines."""
        offset = up(self.size, 64)
        self.size = offset + size
        return offset

    def lines(self, memory: mmap.mmap, rank: int) -> "Lines":
        """Return the lines in this memory as a rank sees them."""

        def line(number: int) -> Tensor:
            return floats_in(memory, number * self._count, self._count)

        def view(number: int, start: int, like: Tensor) -> Tensor:
            return floats_in(memory, number * self._count + start, like.numel()).view(like.shape)

        weights, first, second, averages = range(self.world_size, self.world_size + 4)
        steps_P = np.zeros(len(self.named), np.float32)
        places = [
            Place(
                parameter, self._groups[id(parameter)], start, view(rank, start, parameter), view(0, start, parameter),
                {key: view(number, start, parameter) for key, number in zip(MOMENTS, (first, second), strict=True)},
                torch.from_numpy(steps_P[number : number + 1]).view(()),
            )
            for number, ((_, parameter), start) in enumerate(zip(self.named, self.starts, strict=True))
        ]  # fmt: skip
        return Lines(
            places, [line(number) for number in range(self.world_size)], line(weights),
            dict(zip(MOMENTS, (line(first), line(second)), strict=True)), line(averages) if self._has_average else None,
            steps_P, [view(weights, place.start, place.parameter) for place in places],
            [view(averages, place.start, place.parameter) for place in places] if self._has_average else None,
            [_share(part, rank, self.world_size) for part in self.parts],
        )  # fmt: skip


@dataclass
class Lines:
    """The shared memory, and what of it this rank updates."""

    places: list[Place]
    gradients: list[Tensor]
    """the line of each rank; sums are in that of rank 0"""
    weights: Tensor
    moments: dict[str, Tensor]
    average: Tensor | None
    steps_P: np.ndarray
    """the memory of `Place.step`"""
    weights_of: list[Tensor]
    """of each place"""
    averages_of: list[Tensor] | None
    own: list[tuple[int, int]]
    """the start and the end of all that this rank updates"""

    def own_of(self, place: Place) -> Iterator[tuple[int, int]]:
        """Yield what this rank updates of a parameter."""
        for start, end in self.own:
            if max(start, place.start) < min(end, place.end):
                yield max(start, place.start), min(end, place.end)


def _share(part: tuple[int, int], rank: int, world_size: int) -> tuple[int, int]:
    """Return what a rank updates of a part. A share of every part, since some parameters take longer than others, which
    lie beside one another; whole vectors of a part, so that the bits are those of one update of all of it."""
    start, end = part
    cuts = [min(end, start + up((end - start) * each // world_size, VECTORS)) for each in (rank, rank + 1)]
    return cuts[0], end if rank == world_size - 1 else cuts[1]


def up(number: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-number // multiple) * multiple
