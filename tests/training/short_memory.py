"""Memory for only some rows, as a model meets it: its forward pass fails as torch does where memory is too small."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from nlu.models.task_model import TaskModel

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
