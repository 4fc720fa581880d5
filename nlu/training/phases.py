"""What a run spends its time on: seconds by phase, which add up to the time of the training loop.

One phase is current at any moment. On a CPU, phases change when the host gets there. On an accelerator, which runs one
step ahead of the host, they change when the device gets there: the host records an event and never waits for it. So the
seconds of `data` are those in which the device had nothing to do because the host still gathered rows.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Phase = Literal[
    "data", "transfer", "forward", "backward", "reduce", "optimizer", "evaluation", "saving", "other",
    "reading", "encoding", "writing",
]  # fmt: skip
"""those of training, then those that only `nlu.profile` has for predictions"""


class HostPhases:
    """Phases by the clock of the host."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        """`clock` returns seconds."""
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Forget everything; the time from here on counts, at first for `other`."""
        self._seconds: dict[str, float] = {}
        self._current: Phase = "other"
        self._since_s = self._clock()

    def begin(self, phase: Phase) -> Phase:
        """Count the time from here on for a phase; returns the phase that ends here."""
        now_s, ended = self._clock(), self._current
        self._seconds[ended] = self._seconds.get(ended, 0.0) + now_s - self._since_s
        self._current, self._since_s = phase, now_s
        return ended

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """Count the time of the block for a phase, and then continue with the one before."""
        outer = self.begin(phase)
        try:
            yield
        finally:
            self.begin(outer)

    def catch_up(self) -> None:
        """Wait until the device is here, so that `take` returns all seconds until now. A host always is."""

    def take(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        self.begin(self._current)
        taken, self._seconds = self._seconds, {}
        return taken


class DevicePhases(HostPhases):
    """Phases by events of an accelerator.

    What the device has not reached yet is taken by a later call of `take`. Only `catch_up` waits for it.
    """

    def __init__(self, new_event: Callable[[], Any]):
        """`new_event` returns a `torch.cuda.Event` with timing, of the stream on which everything runs."""
        self._new_event = new_event
        super().__init__()

    def start(self) -> None:
        self._seconds = {}
        self._marks: deque[tuple[Phase, Any]] = deque()
        self._mark("other")

    def begin(self, phase: Phase) -> Phase:
        ended = self._current
        if phase != ended:
            self._mark(phase)
        return ended

    def catch_up(self) -> None:
        self._mark(self._current)
        self._marks[-1][1].synchronize()

    def take(self) -> dict[str, float]:
        # Divides the current phase, so that its part until here can be read.
        self._mark(self._current)
        # Events are reached in their order.
        while len(self._marks) > 1 and self._marks[1][1].query():
            phase, event = self._marks.popleft()
            self._seconds[phase] = self._seconds.get(phase, 0.0) + event.elapsed_time(self._marks[0][1]) / 1e3
        taken, self._seconds = self._seconds, {}
        return taken

    def _mark(self, phase: Phase) -> None:
        self._current = phase
        event = self._new_event()
        event.record()
        self._marks.append((phase, event))


def phases_on(device: torch.device) -> HostPhases:
    """Return the phases of a run on a device, which begin here."""
    if device.type != "cuda":
        return HostPhases()
    return DevicePhases(lambda: torch.cuda.Event(enable_timing=True))
