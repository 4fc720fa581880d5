"""Rows in packed batches of similar lengths, computed batch by batch."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

from nlu.data.collate import Batch, collate
from nlu.data.examples import Examples
from nlu.data.order import evaluation_batches
from nlu.training.memory import KeptMemory, by_parts

Result = TypeVar("Result")


class InBatches:
    """Computes the rows of a set, in smaller batches where memory runs out, and returns freed memory to the system."""

    def __init__(self, device: torch.device, batch_size: int):
        self.device, self.batch_size = device, batch_size
        self._memory = KeptMemory()

    def of(self, part: Examples, work: Callable[[Batch], Result]) -> Iterator[tuple[Batch, Result]]:
        """Yield batches of all examples, in the order of lengths, with the result of `work` for each."""

        def of(examples_B: np.ndarray) -> tuple[Batch, Result]:
            batch = collate(part, examples_B)
            return batch, work(batch)

        batches = evaluation_batches(part.lengths_N, batch_size=self.batch_size, rank=0, world_size=1)
        for _, found in by_parts(of, batches, self.device):
            yield found
        self._memory.limit()
