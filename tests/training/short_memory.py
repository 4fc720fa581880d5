"""Memory for only some rows, as a model meets it: its forward pass fails as torch does where memory is too small.

    python -m tests.training.short_memory MB OVERRIDES

trains with only so much memory beside what the imports take, and says of trainer.batch_size=auto how close it is.
"""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from nlu.data.opening import Store
from nlu.models.task_model import TaskModel
from nlu.training import batch_search
from nlu.training.memory import release, tried
from nlu.training.step import Stepper
from tests.training.in_process import train

SAID = "CUDA out of memory. Tried to allocate 2.00 GiB."


@contextmanager
def memory_for(rows: int, since_call: int = 0) -> Iterator[list[int]]:
    """Let a pass over more rows fail, from pass `since_call` on; yields the rows of each pass so far."""
    met: list[int] = []
    encode = TaskModel.encode

    def limited(self: TaskModel, batch: Any, x_TD: Any = None) -> Any:
        met.append(len(batch))
        if len(met) > since_call and len(batch) > rows:
            raise torch.OutOfMemoryError(SAID)
        return encode(self, batch, x_TD)

    with mock.patch.object(TaskModel, "encode", limited):
        yield met


def main(mb: int, overrides: list[str]) -> None:
    """Train in an address space that has only so much left for it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with mock.patch("nlu.training.build.largest_that_fits", searched):
        train(*overrides)


def searched(stepper: Stepper, store: Store, *how: Any) -> int:
    """Find the number of examples that fit without a reserve, say whether a tenth less and a tenth more fit, and
    return a small one.

    That is asked of the passes themselves, as a step runs them. What fits changes by some percent from pass to pass,
    with the gaps between what is reserved.
    """
    with mock.patch.object(batch_search, "SPARED_BYTES", 1):
        found = batch_search.largest_that_fits(stepper, store, *how)
    part = store.sets["train"]
    for size in (int(0.9 * found), int(1.1 * found)):
        rows_B = np.argsort(-part.lengths_N, kind="stable")[:size]
        shares = stepper.passes.shares(part, [rows_B], 0)
        totals = tried(lambda shares=shares: stepper.passes.run(shares, stepper.passes.weights, 1))  # type: ignore[misc]
        stepper.passes.forget_gradients()
        release(stepper.device)
        print(f"{size} examples {'do not fit' if totals is None else 'fit'}", file=sys.stderr)
    return 16


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
