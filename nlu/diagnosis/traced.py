"""Steps under torch's profiler: time by module and by operator, memory over time, a trace for a browser.

The profiler slows everything down that is short, so speeds are measured without it, by `nlu.diagnosis.profiling`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from nlu.training.phases import HostPhases, Phase

MODULE, PHASE = "nlu.module ", "nlu.phase "
"""how the ranges in a trace begin"""
BACKWARD = "autograd::engine::evaluate_function: "
PASSES = {PHASE + name for name in ("forward", "backward", "optimizer")}
SMALL_US = 20.0
"""an operator that takes less on a processor is mostly the cost of calling it"""


@dataclass
class ModuleTime:
    """The time of a step in modules of one name, without the modules inside of them."""

    name: str
    """dotted; `*` stands for the numbers of layers"""
    modules: int
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass
class OperatorTime:
    """The time of a step in an operator, without the operators that it calls."""

    name: str
    calls: float
    own_s: float


@dataclass
class Traced:
    """What the profiler says of a step."""

    modules: list[ModuleTime] = field(default_factory=list)
    """the slowest first"""
    operators: list[OperatorTime] = field(default_factory=list)
    """the slowest first"""
    calls: float = 0.0
    """of operators"""
    computing_s: float = 0.0
    """on an accelerator the time of its kernels, else that of operators of at least SMALL_US"""
    passes_s: float = 0.0
    """forward, backward and update, as long as they took under the profiler"""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """seconds since the start, and MB of tensors then; on a processor without those from before"""

    def scale(self, factor: float) -> None:
        """Multiply the times of a step."""
        self.computing_s *= factor
        self.passes_s *= factor
        for module in self.modules:
            module.forward_s, module.backward_s = factor * module.forward_s, factor * module.backward_s
        for operator in self.operators:
            operator.own_s *= factor


class _TracedPhases(HostPhases):
    """Phases as ranges of the trace."""

    def __init__(self) -> None:
        self._range: Any = None
        super().__init__()

    def begin(self, phase: Phase) -> Phase:
        if phase != self._current:
            self.end()
            self._range = record_function(PHASE + phase)
            self._range.__enter__()
        return super().begin(phase)

    def end(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None


def trace(
    model: nn.Module, device: torch.device, step: Callable[[HostPhases], None], steps: int, path: Path | None
) -> Traced:
    """Run `steps` steps under the profiler; `path` is the Chrome trace to write, or None.

    `step` runs one step and calls the phases that it gets.
    """
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    phases = _TracedPhases()
    with _named(model), profile(activities=activities, profile_memory=True) as profiler:
        for _ in range(steps):
            step(phases)
        phases.end()
        if on_cuda:
            torch.cuda.synchronize(device)
    found = Traced(_by_module(profiler.events(), model, steps, on_cuda))
    _by_operator(found, profiler, steps, on_cuda)
    if path is not None:
        profiler.export_chrome_trace(str(path))
        found.memory = _memory_over_time(path, on_cuda)
    return found


@contextmanager
def _named(model: nn.Module) -> Iterator[None]:
    """Make each call of a module in the block a range of the trace with its name."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            open_ranges: list[Any] = []

            def enter(*_: Any, name: str = name, ranges: list[Any] = open_ranges) -> None:
                ranges.append(record_function(MODULE + (name or "model")))
                ranges[-1].__enter__()

            def leave(*_: Any, ranges: list[Any] = open_ranges) -> None:
                ranges.pop().__exit__(None, None, None)

            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def without_numbers(name: str) -> str:
    """Return a dotted name with `*` for the numbers of layers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name)


def _by_module(events: Any, model: nn.Module, steps: int, on_cuda: bool) -> list[ModuleTime]:
    """Add up forward passes by the range they ran in, and backward passes by the operator that they are of."""
    names = Counter(without_numbers(name or "model") for name, _ in model.named_modules())
    found: dict[str, ModuleTime] = {}

    def of(name: str) -> ModuleTime:
        short = without_numbers(name)
        return found.setdefault(short, ModuleTime(short, names[short]))

    # An operator and its gradient have the same number. Operators without a gradient see the number of the next one
    # that has one, so the last operator with a number is the one.
    module_of: dict[int, str] = {}
    for event in sorted(events, key=lambda event: event.time_range.start):
        if event.name.startswith(BACKWARD):
            if (name := module_of.get(event.sequence_nr)) is not None:
                of(name).backward_s += _seconds(event, on_cuda, own=False) / steps
        elif (name := _module_around(event)) is not None:
            of(name).forward_s += _seconds(event, on_cuda, own=True) / steps
            if event.sequence_nr >= 0:
                module_of[event.sequence_nr] = name
    return sorted(found.values(), key=lambda one: -(one.forward_s + one.backward_s))


def _module_around(event: Any) -> str | None:
    """Return the innermost module whose forward pass an event belongs to."""
    while event is not None and not event.name.startswith(MODULE):
        # What a gradient calls has no number of its own.
        if event.name.startswith(BACKWARD):
            return None
        event = event.cpu_parent
    return None if event is None else str(event.name.removeprefix(MODULE))


def _seconds(event: Any, on_cuda: bool, *, own: bool) -> float:
    """Return the time of an event, on the device if there is one; `own`: without the events that it calls."""
    side = "device" if on_cuda else "cpu"
    return float(getattr(event, f"self_{side}_time_total" if own else f"{side}_time_total")) / 1e6


def _by_operator(found: Traced, profiler: profile, steps: int, on_cuda: bool) -> None:
    own_s: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for event in profiler.events() or ():
        if event.name in PASSES:
            found.passes_s += float(event.cpu_time_total) / 1e6 / steps
        # Ranges are not operators; their own time is that of Python between them. The time of a kernel is that of the
        # operator that started it too.
        if event.name.startswith((MODULE, PHASE)) or event.device_type == DeviceType.CUDA:
            continue
        seconds = _seconds(event, on_cuda, own=True)
        name = event.name.removeprefix(BACKWARD)
        own_s[name] += seconds / steps
        calls[name] += 1
        # Other ranges, such as those of gradients and of an optimizer, are Python for the most part.
        is_operator = "::" in event.name and not event.name.startswith(BACKWARD)
        if on_cuda or (is_operator and seconds * 1e6 >= SMALL_US):
            found.computing_s += seconds / steps
    ranked = sorted(own_s.items(), key=lambda item: -item[1])
    found.operators = [OperatorTime(name, calls[name] / steps, seconds) for name, seconds in ranked]
    found.calls = sum(number for name, number in calls.items() if name.startswith("aten::")) / steps


def _memory_over_time(path: Path, on_cuda: bool) -> list[tuple[float, float]]:
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    points = sorted(
        (event["ts"], event["args"]["Total Allocated"])
        for event in events
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == (1 if on_cuda else 0)
    )
    return [((ts - points[0][0]) / 1e6, total / 1e6) for ts, total in points]
