"""Batches on a CPU, each on one thread, as many at a time as there are threads.

Several threads that share each operator of a batch wait for one another hundreds of times in a pass, and for Python in
between. Threads with a batch each do not.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from nlu.inference.int8.encoder import CompiledBert
from nlu.inference.int8.layers import TOKENS_PER_THREAD
from nlu.models.encoders.bert import Bert
from nlu.models.task_model import TaskModel
from nlu.training.memory import by_parts, tried

Result = TypeVar("Result")

OURS = ("nlu.", "torch.")
"""packages whose modules may compute on several threads at the same time"""
MIN_HEAD_WIDTH = 12
"""the width of an attention head from which on its products have the same bits on any number of threads"""


FEW_PRODUCTS = 150e6
"""products of an encoder's weights that one thread computes as fast as several; measured with 4 layers of 312"""


def may_be_apart(model: TaskModel, *others: object) -> bool:
    """Return whether threads may compute different batches at the same time, with the same bits as one by one.

    The bits of our BERT do not depend on the number of threads, if its heads are not very narrow; those of other
    encoders do. `others` are what computes beside the model, such as the task: code of users may not expect other
    threads.
    """
    encoder = getattr(model, "backbone", None)
    if not isinstance(encoder, Bert) or encoder.width // encoder.sizes["heads"] < MIN_HEAD_WIDTH:
        return False
    return all(type(part).__module__.startswith(OURS) for part in [*model.modules(), *others])


def is_small(encoder: Bert, tokens: int) -> bool:
    """Return whether one thread computes so many tokens about as fast as several."""
    if isinstance(encoder, CompiledBert):
        return tokens < 2 * TOKENS_PER_THREAD
    sizes = encoder.sizes
    per_layer = sizes["hidden_size"] * (4 * sizes["hidden_size"] + 2 * sizes["intermediate_size"])
    return tokens * sizes["layers"] * per_layer <= FEW_PRODUCTS


@contextmanager
def on_one_thread(is_wanted: bool) -> Iterator[None]:
    """Let torch compute with one thread in the block: for a few tokens, waking others takes longer than they save."""
    threads = torch.get_num_threads()
    if is_wanted and threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def side_by_side(
    work: Callable[[np.ndarray], Result], batches: Sequence[np.ndarray], device: torch.device
) -> Iterator[tuple[np.ndarray, Result]]:
    """Yield what `nlu.training.memory.by_parts` yields, in the same order, computed by torch's number of threads.

    `work` runs on other threads, each of which computes with one. While batches are computed, torch's number of threads
    is 1 in new threads too; afterwards it is what it was.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(batches) < 3:
        yield from by_parts(work, batches, device)
        return
    # Layers keep what they derive from their weights; one example lets them do so before several threads ask.
    tried(partial(work, batches[-1][-1:]))
    is_inferring = torch.is_inference_mode_enabled()

    def computed(examples_B: np.ndarray) -> Result | None:
        with torch.inference_mode(is_inferring):
            return tried(partial(work, examples_B))

    waiting: deque[tuple[np.ndarray, Future[Result | None]]] = deque()
    left = iter(batches)
    pool = ThreadPoolExecutor(threads, "nlu-batch", torch.set_num_threads, (1,))
    try:
        # Twice as many as threads, so that none waits while the caller uses a result.
        waiting.extend((examples_B, pool.submit(computed, examples_B)) for examples_B in islice(left, 2 * threads))
        while waiting:
            examples_B, future = waiting.popleft()
            result = future.result()
            waiting.extend((more_B, pool.submit(computed, more_B)) for more_B in islice(left, 1))
            if result is None:
                # Memory ran out; the batch is divided.
                yield from by_parts(work, [examples_B], device)
            else:
                yield examples_B, result
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
