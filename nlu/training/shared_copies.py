"""Copies in bf16 of the weights of linear layers, which ranks of one machine share.

A forward pass in bf16 multiplies by copies of the weights. Without this, each rank makes all of them in each step; here
each makes those of the part that it updates, right after the update.

Axes: P parameters.
"""

import mmap
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from nlu.models.layers.linear import Linear
from nlu.training.shared_lines import Layout, Lines, up

ALIGNED_BYTES = 64
"""the alignment of torch's own tensors: of some products the order of summation depends on it"""


class Copies:
    """The copies of all linear layers whose weight and bias are trained."""

    def __init__(self, linears: Sequence[Linear], layout: Layout):
        """Reserves memory in the layout."""
        numbers = {id(parameter): number for number, (_, parameter) in enumerate(layout.named)}
        found = [(each, numbers.get(id(each.weight)), numbers.get(id(each.bias))) for each in linears]
        self._linears = [
            (each, weight, bias) for each, weight, bias in found if weight is not None and bias is not None
        ]
        self._offsets = {
            number: layout.reserve(up(2 * layout.named[number][1].numel(), ALIGNED_BYTES))
            for number in sorted({number for _, *both in self._linears for number in both})
        }
        self._copies: dict[int, Tensor] = {}
        self._own: list[tuple[int, Tensor, Tensor]] = []
        self._cuts: list[tuple[int, int, int]] = []
        """start and end of what this rank copies, and the address of the copy"""

    def open(self, memory: mmap.mmap, lines: Lines) -> None:
        """Begin to use the memory; `lines` are in it too."""
        for number, offset in self._offsets.items():
            place = lines.places[number]
            # NumPy has no bf16.
            words = np.frombuffer(memory, np.int16, place.parameter.numel(), offset)
            copy = torch.from_numpy(words).view(torch.bfloat16)
            self._copies[number] = copy.view(place.parameter.shape)
            for start, end in lines.own_of(place):
                own = copy[start - place.start : end - place.start]
                self._own.append((number, own, lines.weights[start:end]))
                self._cuts.append((start, end, own.data_ptr()))
        self._cuts.sort()

    def renew(self, is_updated_P: np.ndarray) -> None:
        """Copy what this rank has updated."""
        if renewed := [(copy, weights) for number, copy, weights in self._own if is_updated_P[number]]:
            copies, weights = map(list, zip(*renewed, strict=True))
            torch._foreach_copy_(copies, weights)

    def use(self, is_updated_P: np.ndarray) -> None:
        """Let layers use the copies of weights that were updated; they are complete after the next meeting.

        Call it when the parameters have the version with which they will be read.
        """
        for linear, weight, bias in self._linears:
            if is_updated_P[weight] and is_updated_P[bias]:
                linear.keep(self._copies[weight], self._copies[bias])

    def cut(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield a stretch of the lines in pieces, as (start, end, address of the copy of its first number, or 0)."""
        for first, after, address in self._cuts:
            if max(start, first) >= min(end, after):
                continue
            if start < first:
                yield start, first, 0
                start = first
            yield start, min(end, after), address + 2 * (start - first)
            start = min(end, after)
        if start < end:
            yield start, end, 0
