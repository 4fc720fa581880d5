"""trainer.batch_size=auto: the micro-batch of the longest training rows is doubled until memory ends.

Real passes are run before the first step, on all ranks together. Afterwards everything is as before.

Axes: N training rows, the longest first.
"""

import logging
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from nlu.config.errors import OutOfMemory
from nlu.data.examples import Examples
from nlu.data.opening import Store
from nlu.display.progress_bars import Progress
from nlu.runs.checkpoint import read_order
from nlu.runs.folder import repeats_beside
from nlu.storage.files import read_json, write_json
from nlu.tasks.task import comparing_loss
from nlu.training import memory
from nlu.training.memory import REMEDY, refused, release
from nlu.training.ranks import Ranks
from nlu.training.step import Stepper

log = logging.getLogger(__name__)

FOUND = "batch_size.json"
"""in a run folder: the number that was found, for a start that continues the run before its first save"""
SHARE = 0.8
"""of the free memory of a machine that passes may take on a CPU, where the system ends a process that takes too much"""
FOR_ONE = "trainer.batch_size is auto, but memory ran out for one example of each rank"


def size_of_start(run_dir: Path, checkpoint: Path | None, ranks: Ranks) -> int | None:
    """Return the number that was found when the run in this folder, of this checkpoint, or of its first repeat began;
    None if it is still to be found."""
    found = None
    if ranks.is_first:
        known = read_order(checkpoint)[1].get("batch_size") if checkpoint else None
        folders = [run_dir, *repeats_beside(run_dir)]
        found = known or next((one["batch_size"] for each in folders if (one := read_json(each / FOUND))), None)
    found = ranks.from_first(found)
    if found is not None:
        log.info("trainer.batch_size=auto: %d examples, as found when the run began", found)
    return found


def keep(run_dir: Path, batch_size: int) -> None:
    """Write the number that was found into the folder of the run."""
    write_json(run_dir / FOUND, {"batch_size": batch_size})


def largest_that_fits(stepper: Stepper, store: Store, accumulation: int, progress: Progress) -> int:
    """Return the number of examples, over all ranks, at which memory does not suffice for twice as many on some rank.

    It is the number of ranks times a power of 2, or all training rows. On a CPU, passes are measured, and twice as many
    rows are not tried if they may take more than SHARE of the free memory. Raises OutOfMemory if one example of each
    rank does not fit.
    """
    ranks, device, began_s = stepper.ranks, stepper.device, time.monotonic()
    sets = [(part, np.argsort(-part.lengths_N, kind="stable")) for part in store.of_role("train").values()]
    size = ranks.world_size
    most = max(size, max(len(rows_N) for _, rows_N in sets) // size * size)
    # Of a loss that compares all rows with all others, memory grows with the square of their number.
    growth = 2 if comparing_loss(stepper.task) is None else 4
    # The processes of a machine grow at the same time.
    here = max(1, ranks.world_size // ranks.nodes)
    allowed = SHARE * memory.free_bytes() / here if device.type == "cpu" else float("inf")
    found = 0
    # A compiled pass would record a graph for each number that is tried.
    passes = nullcontext() if stepper.compiled is None else stepper.compiled.eagerly()
    with passes, refused(FOR_ONE), progress.task("trainer.batch_size=auto") as bar, torch.random.fork_rng():
        # The place of the two moments of AdamW, which the first update makes.
        moments = [torch.ones(each.shape, device=device) for each in stepper.trained for _ in range(2)]
        before = memory.resident_bytes()
        while True:
            bar.description = f"trainer.batch_size=auto: trying {size:,} examples"
            bar.advance()
            if not all(_fits(stepper, part, rows_N[:size], accumulation) for part, rows_N in sets):
                break
            found = size
            may_be_too_much = growth * (1e6 * memory.peak_mb(device) - before) > allowed
            if size >= most or ranks.sum_on_host([float(may_be_too_much)])[0]:
                break
            size = min(2 * size, most)
        del moments
    stepper.passes.forget_gradients()
    stepper.passes.buffers.begin(1)
    release(device)
    if not found:
        raise OutOfMemory(f"{FOR_ONE}; {REMEDY}")
    longest, took_s = max(int(part.lengths_N.max()) for part, _ in sets), time.monotonic() - began_s
    log.info(
        "trainer.batch_size=auto: %s examples fit, of at most %s tokens; found by %d tries in %.0f s",
        f"{found:,}",
        f"{longest:,}",
        bar.done,
        took_s,
    )
    return found


def _fits(stepper: Stepper, part: Examples, rows_N: np.ndarray, accumulation: int) -> bool:
    """Return whether the passes of a step over these rows fit on every rank, as the first step runs them."""
    ranks, passes = stepper.ranks, stepper.passes
    # A second micro-batch adds to gradients, whose memory is taken then.
    shares = passes.shares(part, [rows_N[ranks.rank :: ranks.world_size]] * min(accumulation, 2), 0)
    counts, _ = passes.count(shares, stop=False)
    scale = {name: passes.weights[name] / max(1, count) for name, count in counts.items()}
    return passes.run(shares, scale, 1) is not None
