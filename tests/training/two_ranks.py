"""Steps of two processes with a strategy, as what they leave: `python -m tests.training.two_ranks FOLDER`.

RANK is in the environment. Each process writes FOLDER/rank-RANK.npz.
"""

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from nlu.training.bmuf import Bmuf
from nlu.training.parallel import Replicated
from nlu.training.ranks import Ranks
from tests.training.test_step import ROWS, done, examples_in, stepper, vector

CPU = torch.device("cpu")
STEPS, WARMUP, SYNC_INTERVAL = 9, 2, 3
BLOCK_MOMENTUM, BLOCK_LR = 0.6, 0.9
LR, EPS, CLIP_NORM, EMA_DECAY = 0.03, 1e-2, 0.5, 0.9
SIZES = (3, 70_000)
"""of the gradients whose sum is computed"""


def share(step: int, rank: int) -> np.ndarray:
    """Return the rows of a process in a step: 5 and 7 of them, but none for the second process in step 4."""
    rows = np.roll(np.arange(ROWS), step)
    return (rows[:5], rows[5:])[rank] if step != 4 else (rows, rows[:0])[rank]


def gradients(rank: int) -> list[np.ndarray]:
    """Return the gradients of a process whose sum is computed, of all magnitudes."""
    rng = np.random.default_rng(rank)
    return [(rng.normal(size=size) * 10.0 ** rng.integers(-9, 9, size)).astype(np.float32) for size in SIZES]


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ranks, found = Ranks(rank, 2, CPU), {}
    for name, nesterov in (("plain", False), ("nesterov", True)):
        strategy = Bmuf(
            ranks, sync_interval=SYNC_INTERVAL, block_momentum=BLOCK_MOMENTUM, block_lr=BLOCK_LR, nesterov=nesterov,
            warmup=WARMUP,
        )  # fmt: skip
        parts = stepper(
            LR,
            clip_norm=CLIP_NORM,
            ema_decay=EMA_DECAY,
            optimizer=partial(torch.optim.Adam, eps=EPS),
            parallel=strategy,
        )
        examples = examples_in(folder / f"rank-{rank}-{name}")
        weights, averages, results = [], [], []
        for step in range(1, STEPS + 1):
            result = done(parts, examples, [share(step, rank)], step, False)
            if strategy.is_whole(step) and not strategy.sums_gradients(step):
                parts.synchronize()
            weights.append(vector(parts).numpy())
            averages.append(torch.cat([value.view(-1) for value in (parts.average or {}).values()]).numpy().copy())
            results.append((result.loss, result.gnorm))
        found |= {f"{name}_weights": weights, f"{name}_averages": averages, f"{name}_results": results}
        state = strategy.state([str(place) for place in range(len(parts.trained))])
        found[f"{name}_momentum"] = torch.cat([each.view(-1) for each in state.values()]).numpy()
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    for parameter, gradient in zip(parameters, gradients(rank), strict=True):
        parameter.grad = torch.from_numpy(gradient)
    totals = torch.tensor([1 + 2.0**-20 + rank, 3.0], dtype=torch.float64)
    summed = Replicated(ranks, reduce_dtype="bfloat16").reduce(parameters, totals, 1)
    found |= {"totals": summed.numpy()}
    found |= {f"sum_{place}": parameter.grad.numpy() for place, parameter in enumerate(parameters)}
    np.savez(folder / f"rank-{rank}.npz", **{name: np.array(value) for name, value in found.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
