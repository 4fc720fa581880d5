"""Means and histograms that do not depend on the order in which their parts are added.

The bins of a histogram are fixed, so that counts of calls and ranks can be summed: ten per decade from 1e-6 to 1e6, for
either sign; one for smaller absolute values, including zero; and one beyond each end. A value on an edge belongs to the
bin above. Axes: E edges, B = E + 1 bins, V values.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BINS_PER_DECADE = 10
DECADES = 6
_ENDS = DECADES * BINS_PER_DECADE
_POSITIVE = [10 ** (power / BINS_PER_DECADE) for power in range(-_ENDS, _ENDS + 1)]
EDGES_E = [*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE]
BOUNDS_B = list(zip([-math.inf, *EDGES_E], [*EDGES_E, math.inf], strict=True))
"""lower and upper end of each bin"""


def drawn(edge: float) -> float:
    """Return an end of a bin for a chart, in which the open bins end one decade beyond the last edges."""
    return math.copysign(10.0 ** (DECADES + 1), edge) if math.isinf(edge) else edge


@dataclass
class Mean:
    """The mean of numbers, whose sum is exact: Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997."""

    partials: list[float] = field(default_factory=list)
    """numbers whose bits do not overlap; their sum is that of all added numbers"""
    calls: int = 0
    not_finite: float | None = None
    """the sum of the infinite numbers and NaNs, None if all were finite"""

    def add(self, value: float) -> None:
        self.calls += 1
        self._add(value)

    def merge(self, other: Self) -> None:
        self.calls += other.calls
        for value in other.partials:
            self._add(value)
        if other.not_finite is not None:
            self._add(other.not_finite)

    @property
    def total(self) -> float:
        return math.fsum(self.partials) if self.not_finite is None else self.not_finite

    @property
    def value(self) -> float:
        return self.total / self.calls if self.not_finite is None else self.not_finite

    def _add(self, value: float) -> None:
        if not math.isfinite(value):
            self.not_finite = value if self.not_finite is None else self.not_finite + value
            return
        kept = []
        for partial in self.partials:
            larger, smaller = (value, partial) if abs(value) >= abs(partial) else (partial, value)
            value = larger + smaller
            # The sum overflowed, although all numbers were finite.
            if math.isinf(value):
                self.not_finite = value
                return
            # The rounding error of the sum, which a float holds exactly.
            if rest := smaller - (value - larger):
                kept.append(rest)
        self.partials = [*kept, value]


@dataclass
class Histogram:
    """The number of values in each bin."""

    counts_B: list[int] = field(default_factory=lambda: [0] * len(BOUNDS_B))
    nans: int = 0

    def merge(self, other: Self) -> None:
        self.counts_B = [own + more for own, more in zip(self.counts_B, other.counts_B, strict=True)]
        self.nans += other.nans

    def rows(self) -> list[tuple[float, float, int]]:
        """Return lower end, upper end and count of each bin that is not empty; NaNs are a bin from nan to nan."""
        found = [(*bounds, count) for bounds, count in zip(BOUNDS_B, self.counts_B, strict=True) if count]
        return found + ([(math.nan, math.nan, self.nans)] if self.nans else [])

    def put(self, low: float, count: int) -> None:
        """Add the count of one row of `rows`, given the lower end of its bin."""
        if math.isnan(low):
            self.nans += count
        else:
            self.counts_B[_BIN_OF[low]] += count


_BIN_OF = {low: number for number, (low, _) in enumerate(BOUNDS_B)}


def edges_on(device: "torch.device") -> "Tensor":
    """Return EDGES_E on a device, in float64, for `below`."""
    import torch

    return torch.tensor(EDGES_E, dtype=torch.float64, device=device)


def below(values: "Tensor", edges_E: "Tensor") -> "Tensor":
    """Return the number of elements below each edge, the number of NaNs and that of all elements, in a tensor of E + 2.

    It stays on the device without a synchronization. The results of several tensors may be summed.
    """
    import torch

    values_V = values.reshape(-1).double()
    is_nan_V = values_V.isnan()
    # The position of an edge among the sorted values is the count. Atomic sums would not be deterministic on devices.
    below_E = torch.searchsorted(values_V.masked_fill(is_nan_V, math.inf).sort().values, edges_E)
    return torch.cat([below_E, is_nan_V.sum().view(1), below_E.new_full((1,), values_V.numel())])


def histogram_of(numbers: "Tensor") -> Histogram:
    """Return the histogram for a result of `below`, or for a sum of several."""
    *below_E, nans, elements = numbers.tolist()
    ends = [0, *below_E, elements - nans]
    return Histogram([after - before for before, after in pairwise(ends)], nans)
