"""The order of examples as a pure function of (seed, epoch): nothing is replayed on resume.

Axes: N examples, B a batch.
"""

import numpy as np

from nlu.data.seeds import generator


def epoch_order(
    lengths_N: np.ndarray, *, seed: int, epoch: int, batch_size: int, bucket_batches: int = 64
) -> np.ndarray:
    """Return a permutation of range(N) whose consecutive runs of `batch_size` are the batches of this epoch.

    Examples are shuffled over the whole set, sorted by length within windows of `bucket_batches` batches, cut into
    batches, and the batches are shuffled over the whole epoch. Every example occurs exactly once; only the last
    batch may be smaller. `bucket_batches=1` switches the sorting off.
    """
    count = len(lengths_N)
    rng = generator(seed, "order", epoch)
    order_N = rng.permutation(count)
    full = count // batch_size
    if bucket_batches > 1:
        window_N = np.arange(count) // (batch_size * bucket_batches)
        order_N = order_N[np.lexsort((lengths_N[order_N], window_N))]
    head = order_N[: full * batch_size].reshape(full, batch_size)
    return np.concatenate([head[rng.permutation(full)].reshape(-1), order_N[full * batch_size :]])


def step_batches(
    order_N: np.ndarray, *, step_in_epoch: int, batch_size: int, accumulation: int, rank: int, world_size: int
) -> list[np.ndarray]:
    """Return this rank's share of each micro-batch of one optimizer step.

    The ranks' shares are disjoint and together make the micro-batch; a share may be empty, and a step that ends the
    epoch may have fewer micro-batches.
    """
    first = step_in_epoch * batch_size * accumulation
    last = min(first + batch_size * accumulation, len(order_N))
    micro = [order_N[start : min(start + batch_size, last)] for start in range(first, last, batch_size)]
    return [batch[rank::world_size] for batch in micro]


def evaluation_batches(lengths_N: np.ndarray, *, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """Return this rank's batches for scoring: longest first, each example on exactly one rank, none repeated."""
    order_N = np.argsort(-lengths_N.astype(np.int64), kind="stable")
    per_rank = max(1, batch_size // world_size)
    mine = order_N[rank::world_size]
    return [mine[start : start + per_rank] for start in range(0, len(mine), per_rank)]
