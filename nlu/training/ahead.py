"""The batches of the next step, which a thread makes while a device computes this one.

    loop:    rows of step n + 1 | step n, numbers of step n - 1, evaluation | step n + 1, after the copy
    thread:                     | gather, collate, fill up to a shape, pin, copy on a stream of its own

The thread only reads stored rows and makes tensors: the order of examples, phases and what ranks agree on stay with the
loop. A batch is a function of its rows, so its values are the same with and without the thread.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from nlu.data.examples import Examples
from nlu.training.memory import divided, is_out_of_memory
from nlu.training.parts import Training
from nlu.training.passes import Share

Rows = tuple[Examples, list[np.ndarray], int]
Shares = list[Share | None]


class Ahead:
    """The rows of a run's steps, which are asked for one after another, and their batches."""

    def __init__(self, run: Training, pool: ThreadPoolExecutor, in_thread: bool):
        """`in_thread`: whether the one thread of the pool makes batches, unless rows are still written."""
        growing = [part for part in run.store.of_role("train").values() if part.is_growing]
        self._run, self._pool, self._in_thread = run, pool, in_thread and not growing
        device = run.stepper.device
        # torch gives out 32 streams of each priority in turn, and records CUDA graphs on one of the other priority.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._begun: tuple[int, Rows, int, Future[Shares]] | None = None

    def rows(self, number: int) -> tuple[Examples, list[np.ndarray], int, Shares | None]:
        """Return what step `number`, from 1, is taken from, and its batches; None: the step makes them itself.

        Raises what the thread raised while it made them.
        """
        run = self._run
        if not self._in_thread:
            return (*run.rows(number), None)
        begun, rows, pieces, made = self._begun or self._begin(number)
        assert begun == number, "steps are asked for one after another"
        self._begun = self._begin(number + 1) if number < run.due.total_steps else None
        try:
            shares: Shares | None = made.result()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # The step divides micro-batches that are too large.
            shares = None
        # Memory may have run out since, so that the step has smaller micro-batches.
        return (*rows, shares if pieces == run.stepper.pieces else None)

    def _begin(self, number: int) -> tuple[int, Rows, int, Future[Shares]]:
        rows, pieces = self._run.rows(number), self._run.stepper.pieces
        return number, rows, pieces, self._pool.submit(self._made, rows, pieces)

    def _made(self, rows: Rows, pieces: int) -> Shares:
        (part, micro_batches, epoch), passes = rows, self._run.stepper.passes
        # It also chooses the device of this rank; a new thread begins on the first one.
        with torch.cuda.stream(self._stream):
            shares = passes.shares(part, divided(micro_batches, pieces), epoch)
            for share in filter(None, shares):
                share.ready = passes.ready(share.batch)
                share.copied = None if self._stream is None else self._stream.record_event()
        return shares
