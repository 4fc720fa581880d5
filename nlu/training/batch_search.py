"""trainer.batch_size=auto: the largest micro-batch of the longest training rows that fits into memory.

Real passes are run before the first step, on all ranks together, with everything in memory that a step has there:
gradients, the optimizer's state, the moving average, the method's own models. Afterwards everything is as before.

Axes: B examples of a micro-batch.
"""

import logging
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from nlu.config.errors import OutOfMemory, UserError
from nlu.data.examples import Examples
from nlu.data.opening import Store
from nlu.display.progress import Progress
from nlu.runs.checkpoint import read_order
from nlu.runs.folder import repeats_beside
from nlu.storage.files import read_json, write_json
from nlu.tasks.task import comparing_loss
from nlu.training import host_memory
from nlu.training.memory import REMEDY, refused, release, tried
from nlu.training.ranks import Ranks
from nlu.training.step import Stepper

log = logging.getLogger(__name__)

FOUND = "batch_size.json"
"""in a run folder: the number that was found, for a start that continues the run before its first save"""
SHARE = 0.8
"""of the free memory of a machine that passes may take on a CPU, where the system ends a process that takes too much"""
SPARED_BYTES = 128 << 20
"""of the address space of a process on a CPU that passes may not take: glibc reserves 64 MiB for a new thread, besides
its stack, and does not return all of its heap to the system after passes"""
FOR_ONE = "trainer.batch_size is auto, but memory ran out for one example of each rank"
CLOSENESS = 32
"""the result is at most 1 / CLOSENESS below the largest number that fits, or one example of each rank"""


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
    """Return the largest number of examples, over all ranks, whose passes fit into memory on every rank.

    It is a multiple of the number of ranks, and at most the number of training rows. On an accelerator, and under a
    limit of the address space, passes are run until memory runs out. On a CPU the peak of memory is measured too, and
    larger numbers are run only if their estimate is at most SHARE of the free memory. Raises OutOfMemory if one example
    of each rank does not fit, and UserError for a strategy whose ranks wait for one another within a pass.
    """
    ranks, began_s = stepper.ranks, time.monotonic()
    if not stepper.parallel.passes_are_local:
        raise UserError(
            "trainer.batch_size is auto, but ranks wait for one another within a pass, so the others do not learn that "
            "memory ran out on one; set trainer.batch_size to a number"
        )
    tries = _Tries(stepper, accumulation)
    parts = list(store.of_role("train").values())
    most = max(1, max(map(len, parts)) // ranks.world_size)
    with _as_before(stepper), progress.task("trainer.batch_size=auto") as bar:
        tries.allocate(parts[0])
        for part in parts:
            tries.forget()
            longest_first_N = np.argsort(-part.lengths_N, kind="stable")

            def fits(size: int, part: Examples = part, rows_N: np.ndarray = longest_first_N) -> bool:
                bar.description = f"trainer.batch_size=auto: trying {size * ranks.world_size:,} examples"
                bar.advance()
                return tries.fits(part, rows_N[: size * ranks.world_size])

            # A set whose rows all fit, as one of a mixture may, sets no limit.
            whole = max(1, -(-len(part) // ranks.world_size))
            if not (found := largest(fits, min(most, whole))):
                raise OutOfMemory(f"{FOR_ONE}; {REMEDY}")
            most = most if found == whole else found
    batch_size = most * ranks.world_size
    log.info(
        "trainer.batch_size=auto: %s examples fit, of at most %s tokens; found by %d tries in %.0f s",
        f"{batch_size:,}",
        f"{max(int(part.lengths_N.max()) for part in parts):,}",
        bar.done,
        time.monotonic() - began_s,
    )
    return batch_size


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, or one that is less than 1 / CLOSENESS smaller; 0 if none does.

    If a number fits, all smaller ones do.
    """
    low, high = 0, 1
    while fits(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // CLOSENESS):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class _Tries:
    """Passes over given rows, and what is known of their memory; a try is of all ranks together."""

    def __init__(self, stepper: Stepper, accumulation: int):
        self._stepper, self._accumulation = stepper, accumulation
        self._ranks = stepper.ranks
        # Of a loss that compares all rows with all others, memory grows with the square of their number.
        self._growth = 1.0 if comparing_loss(stepper.task) is None else 2.0
        self._is_measured = stepper.device.type == "cpu"
        self._known: list[tuple[int, int]] = []
        """the rows of this rank and the bytes that they took, of the tries that fitted"""
        self._allowed = 0.0

    def allocate(self, part: Examples) -> None:
        """Give gradients and the optimizer's state their memory, by an update with one example of each rank."""
        stepper = self._stepper
        with refused(FOR_ONE):
            rows_N = np.argsort(-part.lengths_N, kind="stable")[: self._ranks.world_size]
            totals = self._run(part, rows_N)
            stepper.parallel.reduce(stepper.trained, totals, 1)
            gradients = [parameter.grad for parameter in stepper.trained if parameter.grad is not None]
            # On the host, so that copies take no memory of the device.
            before = [parameter.detach().to("cpu", copy=True) for parameter in stepper.trained]
            # Ranks may share the memory of weights, which the others still copy.
            stepper.parallel.settle()
            torch.autograd.graph.increment_version(stepper.trained)
            with torch.no_grad():
                stepper.parallel.update(stepper.optimizer, gradients, torch.ones((), device=stepper.device), None)
                # Each writes the same numbers.
                stepper.parallel.settle()
                for parameter, weights in zip(stepper.trained, before, strict=True):
                    parameter.copy_(weights)
            stepper.parallel.settle()
            del before, gradients
        if self._is_measured:
            # The processes of a machine grow at the same time.
            here = max(1, self._ranks.world_size // self._ranks.nodes)
            self._ranks.barrier()
            self._allowed = SHARE * host_memory.of_machine()[0] / here
            self._peak = host_memory.Peak()

    def forget(self) -> None:
        """Begin with another set, whose rows may take more memory."""
        self._known = []

    def fits(self, part: Examples, rows_N: np.ndarray) -> bool:
        """Return whether the passes over these rows fit on every rank. It is not tried where it is known before."""
        own = len(rows_N[self._ranks.rank :: self._ranks.world_size])
        is_too_large = self._is_measured and self._estimate(own) > self._allowed
        if self._ranks.sum_on_host([float(is_too_large)])[0]:
            return False
        if self._is_measured:
            self._peak.restart()
        totals = tried(lambda: self._run(part, rows_N))
        taken = self._peak.bytes() if self._is_measured else 0
        has_failed = totals is None or (self._is_measured and taken > self._allowed)
        if self._ranks.sum_on_host([float(has_failed)])[0]:
            had_gradients = [parameter for parameter in self._stepper.trained if parameter.grad is not None]
            self._stepper.passes.forget_gradients()
            release(self._stepper.device)
            if self._accumulation > 1:
                # A later micro-batch of a step adds to gradients, so the next try must find their memory taken.
                for parameter in had_gradients:
                    parameter.grad = torch.zeros_like(parameter)
            return False
        self._known.append((own, taken))
        return True

    def _estimate(self, rows: int) -> float:
        """Return the bytes that this many rows may take: no less than the line through the two largest known numbers.

        Rows are tried from the longest to the shortest, so the memory of each further one is at most that of those
        before.
        """
        if len(self._known) < 2:
            return 0.0
        (few, less), (many, more) = sorted(self._known)[-2:]
        return more + self._growth * (rows - many) * max(0.0, (more - less) / (many - few))

    def _run(self, part: Examples, rows_N: np.ndarray) -> torch.Tensor:
        """Compute the gradient of these rows as in the first micro-batch of a step, or one that adds to others."""
        passes = self._stepper.passes
        shares = passes.shares(part, [rows_N[self._ranks.rank :: self._ranks.world_size]], 0)
        counts, _, _ = passes.count(shares, stop=False)
        scale = {name: passes.weights[name] / max(1, count) for name, count in counts.items()}
        if self._accumulation == 1:
            passes.forget_gradients()
        (share,) = shares
        assert share is not None, "every rank has rows"
        return passes.backward(share, scale, 1, 0)


@contextmanager
def _as_before(stepper: Stepper) -> Iterator[None]:
    """Put back what passes and updates change besides the weights: gradients, buffers, optimizer, random numbers."""
    modules = [stepper.model, *([] if stepper.own is None else [stepper.own])]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    state = {parameter: dict(values) for parameter, values in stepper.optimizer.state.items()}
    on_cuda = stepper.device.type == "cuda"
    spared = None
    if not on_cuda:
        # Never written to, so it takes no memory but only addresses. If there are too few, passes may still fit.
        with suppress(OSError):
            spared = mmap.mmap(-1, SPARED_BYTES)
    with torch.random.fork_rng(devices=[stepper.device] if on_cuda else []):
        try:
            yield
        finally:
            if spared is not None:
                spared.close()
            stepper.passes.forget_gradients()
            stepper.optimizer.state.clear()
            stepper.optimizer.state.update(state)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
    # Outside of the block, which holds the tensors of an error.
    release(stepper.device)
