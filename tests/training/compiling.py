"""Compiled runs on a CPU, for tests: traced as on a device, and computed by torch's own operators."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast
from unittest import mock

import torch
from torch._dynamo.utils import counters

from nlu.models.encoders import bert, modern
from nlu.training.compiled import ALLOWED_ON_CPU, Compiled
from nlu.training.loop import warm_up
from nlu.training.parts import Training


class Watched:
    """What runs compiled: how many graphs, and after which shapes."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        """of each run"""
        self.warm: list[tuple[int, int]] = []
        """after each warm-up: graphs so far, and shapes of the run"""

    def warm_up(self, run: Training) -> None:
        """Warm up, and look at what that has compiled."""
        compiled = run.stepper.compiled
        before = None if compiled is None else compiled.pieces
        warm_up(run)
        # It does nothing after most saves.
        if compiled is not None and compiled.pieces != before:
            self.compiled.append(compiled)
            self.warm.append(self.now)

    @property
    def now(self) -> tuple[int, int]:
        """Graphs so far, and shapes of the last run."""
        last = self.compiled[-1]
        shapes = [shape for each in (last.trained, last.scored) for shape in (*each.shapes, *each.others)]
        return counters["stats"]["unique_graphs"], len(shapes)


@contextmanager
def compiling(backend: str = "eager") -> Iterator[Watched]:
    """Compile runs in this process with trainer.compile=true by a backend of torch.

    "eager" traces graphs, "aot_eager" traces backward passes too; both compute them by torch's own operators.
    "inductor" takes half a minute for each graph.
    """
    watched = Watched()
    torch._dynamo.reset()
    counters.clear()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict("os.environ", {ALLOWED_ON_CPU: "1"}))
        stack.enter_context(mock.patch("nlu.training.build.Compiled", partial(Compiled, backend=backend)))
        stack.enter_context(mock.patch("nlu.training.loop.warm_up", watched.warm_up))
        if backend == "eager":
            # This backend would first compute a region from numbers that nobody has set.
            for module in (bert, modern):
                inner = cast(Any, module._filled_layer).__marked_compile_region_fn__
                stack.enter_context(mock.patch.object(module, "_filled_layer", inner))
        yield watched
    assert not counters["graph_break"]
