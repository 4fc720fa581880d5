"""Steps under torch's profiler: its tables by operator and module, and a trace for a browser.

The profiler slows everything down that is short, so speeds are measured without it, by `nlu.diagnosis.profiling`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

MODULE = "module "
"""how the ranges of modules in a trace begin"""
ROWS, NAME_WIDTH = 20, 60
"""of a table"""


@dataclass(frozen=True)
class Traced:
    """What the profiler says of some steps."""

    rows: Any
    """torch's list of averages, a row for each name of an operator or a module"""
    steps: int
    on_cuda: bool

    def busy(self, step_s: float) -> float | None:
        """Return the share of a step in which kernels run on a CUDA device. They take as long as without the profiler,
        under which the host is slower, so `step_s` was measured without it."""
        kernels = [row for row in self.rows if row.device_type == DeviceType.CUDA and not row.is_user_annotation]
        kernels_us = sum(row.self_device_time_total for row in kernels)
        return min(1.0, kernels_us / 1e6 / self.steps / step_s) if self.on_cuda else None

    def tables(self) -> list[str]:
        """Return torch's tables: by the time with what is called, which shows modules, and by the own time, which shows
        operators."""
        side = "device" if self.on_cuda else "cpu"
        return [
            self.rows.table(sort_by=f"{kind}{side}_time_total", row_limit=ROWS, max_name_column_width=NAME_WIDTH)
            for kind in ("", "self_")
        ]


def trace(model: nn.Module, device: torch.device, step: Callable[[], object], steps: int, path: Path | None) -> Traced:
    """Run `steps` steps under the profiler; `path` is the Chrome trace to write, or None."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with _named(model), profile(activities=activities, profile_memory=True) as profiler:
        for _ in range(steps):
            step()
        if on_cuda:
            torch.cuda.synchronize(device)
    if path is not None:
        profiler.export_chrome_trace(str(path))
    return Traced(profiler.key_averages(), steps, on_cuda)


@contextmanager
def _named(model: nn.Module) -> Iterator[None]:
    """Make each call of a module in the block a range of the trace with its name."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            open_ranges: list[record_function] = []

            def enter(
                *_: object, name: str = without_numbers(name), ranges: list[record_function] = open_ranges
            ) -> None:
                ranges.append(record_function(MODULE + (name or "model")))
                ranges[-1].__enter__()

            def leave(*_: object, ranges: list[record_function] = open_ranges) -> None:
                ranges.pop().__exit__(None, None, None)

            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def without_numbers(name: str) -> str:
    """Return a dotted name with `*` for the numbers of layers, so that layers of one kind share a row."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name)
