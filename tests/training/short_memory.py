"""Memory for only some rows, as a model meets it: its forward pass fails as torch does where memory is too small.

    python -m tests.training.short_memory MB OVERRIDES

trains with only so much memory beside what the imports take.
"""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from nlu.models.task_model import TaskModel
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
    train(*overrides)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
