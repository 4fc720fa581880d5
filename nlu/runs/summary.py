"""Numbers that a model or loss of your package records during training:

    from nlu.runs import summary

    summary.scalar("gate", gate_S.mean())

During evaluations and elsewhere a call costs almost nothing. During training, each call in each pass of each
micro-batch on each rank counts once; the run takes their mean at every row of train.tsv (`nlu.training.journal`).
Recorded values are detached, and recording draws no random numbers, so weights do not change.

In a region of torch.compile a call breaks the graph, so `fullgraph=True` raises an error.
"""

import math
import numbers
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from nlu.config.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

COMPILER = "torch._dynamo"


def scalar(name: str, value: "Tensor | float") -> None:
    """Record one number, a Python number or a tensor of one element; the value of the run is the mean over all calls.

    Raises UserError for a name with a tab or line break, and for a tensor of several elements.
    """
    if listener is not None:
        listener.scalar(name, value)


@dataclass
class Mean:
    """The mean of numbers, which does not depend on their order: a save at a signal divides them elsewhere."""

    partials: list[float] = field(default_factory=list)
    """numbers with the sum of all"""
    calls: int = 0

    def merge(self, other: Self) -> None:
        self.partials += other.partials
        self.calls += other.calls

    @property
    def value(self) -> float:
        try:
            return math.fsum(self.partials) / self.calls
        # Of infinite numbers of both signs, and above the largest number.
        except (ValueError, OverflowError):
            return sum(self.partials) / self.calls


class Collector:
    """The values that this process has recorded since the last `take`."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, float | Tensor]] = []
        """in order; what was recorded of passes that are run again is deleted from its end"""
        self._is_hidden_from_compiler = False

    def scalar(self, name: str, value: Any) -> None:
        _require_name(name)
        if isinstance(value, numbers.Real):
            self.recorded.append((name, float(value)))
            return
        if (elements := getattr(value, "numel", None)) is None or elements() != 1:
            shown = f"a tensor of shape {tuple(value.shape)}" if elements else f"a {type(value).__name__}"
            raise UserError(f"summary.scalar({name!r}) was given {shown}, not one number; give its mean, or its sum")
        # Reading the value now would make the host wait for the device. It is copied, since its tensor may change.
        self.recorded.append((name, value.detach().reshape(()).double().clone()))

    def take(self) -> dict[str, Mean]:
        """Return the means of all recorded values, and forget them."""
        means: dict[str, Mean] = {}
        for name, value in self.recorded:
            means.setdefault(name, Mean()).merge(Mean([float(value)], 1))
        self.recorded.clear()
        return means

    def hide_from_compiler(self) -> None:
        """Exclude `scalar` from torch.compile, if its compiler is loaded; it is not loaded for this.

        Tracing it would recompile a model for each length of the list in it.
        """
        if not self._is_hidden_from_compiler and COMPILER in sys.modules:
            import torch

            self.scalar = torch.compiler.disable(self.scalar)  # type: ignore[method-assign]
            self._is_hidden_from_compiler = True


listener: Collector | None = None
"""what records the calls of this process now"""


@contextmanager
def listening(collector: Collector) -> Iterator[None]:
    """Record the calls of this process during the block."""
    global listener
    collector.hide_from_compiler()
    before, listener = listener, collector
    try:
        yield
    finally:
        listener = before


@contextmanager
def unheard() -> Iterator[None]:
    """Ignore all calls during the block."""
    global listener
    before, listener = listener, None
    try:
        yield
    finally:
        listener = before


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or any(mark in name for mark in "\t\n\r"):
        raise UserError(f"summary.scalar was given the name {name!r}; give a text without tab or line break")
