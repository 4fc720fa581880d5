"""Numbers that a model or loss of your package records during training:

    from nlu.runs import summary

    summary.scalar("gate", gate_S.mean())
    summary.histogram("attention", weights_HTT)
    summary.over_evaluation("confidence", best_N, reduce="min")

The first two record during training, the last one during evaluations; elsewhere a call costs almost nothing. During
training, each call in each pass of each micro-batch on each rank counts once; the run reduces them at every row of
train.tsv (`nlu.training.journal`). Recorded values are detached, and recording draws no random numbers, so weights do
not change.

In a region of torch.compile a call breaks the graph, so `fullgraph=True` raises an error.
"""

import numbers
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

from nlu.config.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, device

    from nlu.runs.over_evaluation import Recorder, Reduce
    from nlu.runs.tallies import Histogram, Mean

COMPILER = "torch._dynamo"
KEPT_ON_DEVICE_MAX = 4096
"""values kept on an accelerator before the host reads them, so that memory does not grow with the interval"""


def scalar(name: str, value: "Tensor | float") -> None:
    """Record one number, a Python number or a tensor of one element; the value of the run is the mean over all calls.

    Raises UserError for a name with a tab or line break, and for a tensor of several elements.
    """
    if _listener is not None:
        _listener.scalar(name, value)


def histogram(name: str, values: "Tensor") -> None:
    """Record the distribution of the elements of a tensor of any shape.

    The run's histogram is the sum of the counts over all calls, in the bins of `nlu.runs.tallies`. Raises UserError for
    a name with a tab or line break, and for anything but a tensor.
    """
    if _listener is not None:
        _listener.histogram(name, values)


def over_evaluation(name: str, values: "Tensor | Sequence[float] | float", reduce: "Reduce" = "mean") -> None:
    """Record values of which an evaluation keeps a statistic over all batches and ranks, as the metric summary/NAME.

    `values`: one number, or a tensor or sequence of any shape, of which each element counts once. `reduce` is mean,
    sum, min, max, or a function that receives all values as a sorted float64 array and returns a number or a dictionary
    of numbers; for a function, all values of the evaluation are kept in memory. The statistic does not depend on the
    batch size or the number of ranks if the values do not. Raises UserError for a name with a tab or line break.
    """
    if _recorder is not None:
        _require_name("over_evaluation", name)
        _recorder.add(name, values, reduce)


class Collector:
    """The values that this process has recorded since the last `take`."""

    def __init__(self) -> None:
        self._means: dict[str, Mean] = {}
        self._numbers: dict[str, Tensor] = {}
        """by histogram, see `nlu.runs.tallies.below`"""
        self._waiting: list[tuple[str, Tensor]] = []
        self._edges: dict[device, Tensor] = {}
        self._is_hidden_from_compiler = False

    def scalar(self, name: str, value: Any) -> None:
        _require_name("scalar", name)
        if isinstance(value, numbers.Real):
            self._add(name, float(value))
            return
        if (elements := getattr(value, "numel", None)) is None or elements() != 1:
            shown = f"a tensor of shape {tuple(value.shape)}" if elements else f"a {type(value).__name__}"
            raise UserError(f"summary.scalar({name!r}) was given {shown}, not one number; give its mean, or its sum")
        if value.device.type == "cpu":
            self._add(name, float(value.detach()))
            return
        # Reading the value now would make the host wait for the device. It is copied, since its tensor may change.
        self._waiting.append((name, value.detach().reshape(()).double().clone()))
        if len(self._waiting) >= KEPT_ON_DEVICE_MAX:
            self._settle()

    def histogram(self, name: str, values: "Tensor") -> None:
        _require_name("histogram", name)
        if not hasattr(values, "numel"):
            raise UserError(f"summary.histogram({name!r}) was given a {type(values).__name__}; give a tensor")
        from nlu.runs.tallies import below, edges_on

        if values.device not in self._edges:
            self._edges[values.device] = edges_on(values.device)
        more = below(values.detach(), self._edges[values.device])
        self._numbers[name] = self._numbers[name] + more if name in self._numbers else more

    def take(self) -> "tuple[dict[str, Mean], dict[str, Histogram]]":
        """Return all recorded values, and forget them."""
        from nlu.runs.tallies import histogram_of

        self._settle()
        means, counted = self._means, self._numbers
        self._means, self._numbers = {}, {}
        return means, {name: histogram_of(each) for name, each in counted.items()}

    def mark(self) -> Callable[[], None]:
        """Return a function that forgets what is recorded from here on."""
        means = {name: copy(mean) for name, mean in self._means.items()}
        # Tensors are replaced by others, never changed.
        counted, waiting = dict(self._numbers), list(self._waiting)

        def forget() -> None:
            self._means, self._numbers, self._waiting = means, counted, waiting

        return forget

    def hide_from_compiler(self) -> None:
        """Exclude these methods from torch.compile, if its compiler is loaded; it is not loaded for this.

        Tracing them would recompile a model for each length of the lists in them.
        """
        if not self._is_hidden_from_compiler and COMPILER in sys.modules:
            import torch

            for name in ("scalar", "histogram"):
                setattr(self, name, torch.compiler.disable(getattr(self, name)))
            self._is_hidden_from_compiler = True

    def _add(self, name: str, value: float) -> None:
        from nlu.runs.tallies import Mean

        self._means.setdefault(name, Mean()).add(value)

    def _settle(self) -> None:
        if self._waiting:
            import torch

            values = torch.stack([value for _, value in self._waiting]).tolist()
            for (name, _), value in zip(self._waiting, values, strict=True):
                self._add(name, value)
            self._waiting = []


_listener: Collector | None = None
_recorder: "Recorder | None" = None


@contextmanager
def recording(recorder: "Recorder") -> Iterator[None]:
    """Record the calls of `over_evaluation` of this process during the block."""
    global _recorder
    before, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = before


@contextmanager
def listening(collector: Collector) -> Iterator[None]:
    """Record the calls of this process during the block."""
    global _listener
    collector.hide_from_compiler()
    before, _listener = _listener, collector
    try:
        yield
    finally:
        _listener = before


def mark() -> Callable[[], None]:
    """Return a function that makes this process forget what is recorded in training from here on, for passes that are
    run again."""
    return (lambda: None) if _listener is None else _listener.mark()


@contextmanager
def unheard() -> Iterator[None]:
    """Ignore all calls during the block."""
    global _listener
    before, _listener = _listener, None
    try:
        yield
    finally:
        _listener = before


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip() or any(mark in name for mark in "\t\n\r"):
        raise UserError(f"summary.{what} was given the name {name!r}; give a text without tab or line break")
