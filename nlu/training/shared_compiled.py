"""The update of what a rank has to update, by the kernel in C: `trainer.kernels=compiled` with `parallel=shared`."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from nlu.optim.compiled import STRETCH, update_in_one_pass
from nlu.training.shared_copies import Copies
from nlu.training.shared_lines import MOMENTS, Lines

Run = tuple[int, int, int, bool]
"""the first parameter, start and end in the lines, and whether it rests"""


class CompiledUpdate:
    """Weights, moments, averages and bf16 copies in one pass."""

    def __init__(self, lines: Lines, copies: Copies):
        self._lines, self._copies = lines, copies
        self._runs: Sequence[Run] | None = None
        self._stretches = np.zeros(0, STRETCH)
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
        update_in_one_pass(
            [lines.weights, gradients, *(lines.moments[key] for key in MOMENTS)],
            None if amount is None else lines.average, self._stretches, groups, divisor, amount or 0.0,
        )  # fmt: skip

    def _plan(self, runs: Sequence[Run]) -> None:
        self._first = list(dict.fromkeys(first for first, *_ in runs))
        numbers = {first: number for number, first in enumerate(self._first)}
        found: list[tuple[int, int, int, int, bool]] = []
        for first, start, end, rests in runs:
            found += [(*cut, numbers[first], rests) for cut in self._copies.cut(start, end)]
        # The average follows weights that are not updated too.
        for start, end in self._lines.own:
            found += [(*gap, 0, -1, False) for gap in _gaps(start, end, [(a, b) for _, a, b, _ in runs])]
        self._stretches = np.array(sorted(found), STRETCH)


def _gaps(start: int, end: int, covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is not covered between two numbers; `covered` is in ascending order."""
    for first, after in covered:
        if max(start, first) < min(end, after):
            if start < first:
                yield start, first
            start = after
    if start < end:
        yield start, end
