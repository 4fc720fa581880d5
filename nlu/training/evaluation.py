"""Scoring a set: every example once, whatever the batch size and the number of processes.

Axes: N examples of the set, R rows of logits, C labels.
"""

from collections.abc import Callable

import numpy as np
import torch

from nlu.data.collate import collate
from nlu.data.examples import Examples
from nlu.data.order import evaluation_batches
from nlu.data.ragged import ranges, starts_of
from nlu.models.task_model import TaskModel
from nlu.tasks.outputs import Outputs
from nlu.training.distributed import Ranks
from nlu.training.precision import Precision


@torch.inference_mode()
def outputs_of(
    model: TaskModel, part: Examples, *, batch_size: int, ranks: Ranks, precision: Precision,
    advance: Callable[[int], None],
) -> Outputs | None:  # fmt: skip
    """Return the logits of every example of a set, in its order, on rank 0; None on the other ranks."""
    was_training = model.training
    model.eval()
    examples, counts, logits = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    batches = evaluation_batches(part.lengths_N, batch_size=batch_size, rank=ranks.rank, world_size=ranks.world_size)
    for examples_B in batches:
        batch = collate(part, examples_B).to(ranks.device)
        with precision.autocast(ranks.device):
            logits_RC = model(batch)
        examples.append(batch.examples_B)
        counts.append(batch.unit_counts_B if batch.unit_counts_B is not None else np.ones(len(batch), np.int64))
        logits.append(logits_RC.cpu().numpy())
        advance(len(batch))
    model.train(was_training)
    mine = np.concatenate(examples), np.concatenate(counts), logits
    gathered = ranks.gather_to_first(mine)
    return _in_order(gathered) if gathered is not None else None


def _in_order(gathered: list[tuple[np.ndarray, np.ndarray, list[np.ndarray]]]) -> Outputs:
    examples_N = np.concatenate([examples for examples, _, _ in gathered])
    counts_N = np.concatenate([counts for _, counts, _ in gathered])
    logits_RC = np.concatenate([rows for _, _, parts in gathered for rows in parts])
    order_N = np.argsort(examples_N, kind="stable")
    assert np.array_equal(examples_N[order_N], np.arange(len(order_N))), "an example was scored twice or never"
    rows_R = ranges(starts_of(counts_N)[order_N], counts_N[order_N])
    return Outputs(logits_RC[rows_R], counts_N[order_N])
