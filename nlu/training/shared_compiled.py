"""The update of what a rank has to update, by the kernel in C (`trainer.kernels=compiled`)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from nlu.models.layers.compiled.calls import in_parts
from nlu.optim.compiled import STRETCH, update_in_one_pass
from nlu.training.shared_copies import Copies
from nlu.training.shared_lines import MOMENTS, Lines

Run = tuple[int, int, int, bool]
"""the first parameter, start and end in the lines, and whether it rests"""
Stretch = tuple[int, int, int, int, bool]
"""as STRETCH"""
COST_OF_REST = 0.5
"""of a number that rests, if that of others is 1: neither its gradient nor its moments are read"""
GRAIN = 256
"""numbers of a stretch at whose multiples it may be cut, whole lines of the cache also of its bf16 copy"""


class CompiledUpdate:
    """Weights, moments, averages and bf16 copies in one pass."""

    def __init__(self, lines: Lines, copies: Copies):
        self._lines, self._copies = lines, copies
        self._runs: Sequence[Run] | None = None
        self._parts: list[np.ndarray] = []
        """the stretches of each thread"""
        self._first: list[int] = []

    def run(self, runs: Sequence[Run], gradients: Tensor, divisor: float, amount: float | None) -> None:
        """Update these stretches. `amount` is the share of the distance by which the average moves, None without one.
        Counts of updates are those before this one."""
        # The same list in most steps.
        if runs is not self._runs:
            self._runs = runs
            self._plan(runs)
        lines = self._lines
        groups = [(lines.places[first].group, float(lines.steps_P[first]) + 1) for first in self._first]
        updated = [lines.weights, gradients, *(lines.moments[key] for key in MOMENTS)]
        average = None if amount is None else lines.average
        in_parts(update_in_one_pass, [(updated, average, each, groups, divisor, amount or 0.0) for each in self._parts])

    def _plan(self, runs: Sequence[Run]) -> None:
        self._first = list(dict.fromkeys(first for first, *_ in runs))
        numbers = {first: number for number, first in enumerate(self._first)}
        found: list[Stretch] = []
        for first, start, end, rests in runs:
            found += [(*cut, numbers[first], rests) for cut in self._copies.cut(start, end)]
        # The average follows weights that are not updated too.
        for start, end in self._lines.own:
            found += [(*gap, 0, -1, False) for gap in _gaps(start, end, [(a, b) for _, a, b, _ in runs])]
        self._parts = shares(sorted(found), torch.get_num_threads())


def shares(stretches: Sequence[Stretch], count: int) -> list[np.ndarray]:
    """Return the stretches in `count` parts of STRETCH that take about equally long; some are cut for that.

    A number is updated to the same bits wherever its stretch is cut.
    """
    whole = sum(_cost(start, end, rests) for start, end, *_, rests in stretches)
    parts: list[list[Stretch]] = [[] for _ in range(count)]
    number, missing = 0, whole / count
    for start, end, copy, settings, rests in stretches:
        while number < count - 1 and (cost := _cost(start, end, rests)) > missing:
            cut = start + int((end - start) * missing / cost) // GRAIN * GRAIN
            if cut > start:
                parts[number].append((start, cut, copy, settings, rests))
                # Numbers of bf16.
                start, copy = cut, copy and copy + 2 * (cut - start)
            number, missing = number + 1, whole / count
        parts[number].append((start, end, copy, settings, rests))
        missing -= _cost(start, end, rests)
    return [np.array(part, STRETCH) for part in parts]


def _cost(start: int, end: int, rests: bool) -> float:
    return (end - start) * (COST_OF_REST if rests else 1.0)


def _gaps(start: int, end: int, covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is not covered between two numbers; `covered` is in ascending order."""
    for first, after in covered:
        if max(start, first) < min(end, after):
            if start < first:
                yield start, first
            start = after
    if start < end:
        yield start, end
