"""How fast steps are by the size of the micro-batch, and the smallest size that is about as fast as any."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nlu.config.errors import OutOfMemory
from nlu.config.scan import Scan
from nlu.config.schema import Trainer
from nlu.diagnosis.profiled import device_name
from nlu.diagnosis.steps import take_step
from nlu.optim.update import set_learning_rate
from nlu.tasks.task import comparing_loss
from nlu.training import host_memory
from nlu.training.batch_search import SHARE
from nlu.training.memory import peak_mb, release
from nlu.training.meter import size_of_step
from nlu.training.ordering import order_of
from nlu.training.parts import Training
from nlu.training.result import Step

WARMUP = 2
"""steps of each size before the measured ones"""
LEAST_S, MOST_S = 1.0, 15.0
"""the shortest time of a size, and the time after which its next step is left out"""
LEAST_STEPS = 3
CLOSE = 0.95
"""share of the best rate that counts as equally fast"""
DOUBLINGS = 2
"""doublings in a row without a gain, after which the scan ends"""
NO_FASTER = "they would not be faster"


@dataclass(frozen=True)
class Size:
    """What was measured of one size of micro-batches."""

    batch_size: int
    steps: int
    step_s: float
    examples_per_s: float
    real_tokens_per_s: float
    peak_mb: float | None
    """as in train.tsv, but of these steps only; None where it cannot be known"""


@dataclass
class BatchScan:
    """The sizes that were measured, the smallest first, and what follows from them."""

    sizes: list[Size]
    device: str
    end: str
    """why no larger size was measured, as the rest of a sentence"""
    trainer: Trainer
    compares: str | None = None
    """the name of a loss whose value for a row depends on the other rows of the micro-batch, if there is one"""
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Size:
        """The size that computes the most tokens in a second."""
        return max(self.sizes, key=lambda size: size.real_tokens_per_s)

    @property
    def recommended(self) -> Size:
        """The smallest size that is at most 5 % slower than the best one.

        By tokens, since the rows of few steps are longer or shorter by chance.
        """
        bound = CLOSE * self.best.real_tokens_per_s
        return next(size for size in self.sizes if size.real_tokens_per_s >= bound)

    @property
    def step_examples(self) -> int | None:
        """The examples of a step of the configuration; None if trainer.batch_size is auto."""
        size = self.trainer.batch_size
        return None if isinstance(size, str) else size * self.trainer.accumulation

    @property
    def overrides(self) -> str:
        """The overrides that set the recommended size; a step keeps its examples where they are a multiple of it."""
        size, wanted = self.recommended.batch_size, self.step_examples
        if wanted is None or self.compares or wanted % size:
            return f"trainer.batch_size={size} trainer.accumulation={self.trainer.accumulation}"
        return f"trainer.batch_size={size} trainer.accumulation={wanted // size}"

    def to_json(self) -> dict[str, Any]:
        return {
            "of": "batch_size",
            "recommended": self.recommended.batch_size,
            "overrides": self.overrides,
            "best": self.best.batch_size,
            "sizes": [asdict(size) for size in self.sizes],
            "end": self.end,
            "device": self.device,
            "notes": self.notes,
        }


def run_batch_scan(run: Training, config: Scan, advance: Callable[[int], None]) -> BatchScan:
    """Measure steps of one micro-batch of 1, 2, 4, ... examples, with an update after each that changes no weight.

    It ends at `max_batch_size`, at the number of training rows, where memory ends, or where two doublings are no
    faster. Raises OutOfMemory if the first size does not fit.
    """
    stepper = run.stepper
    compares = comparing_loss(run.task)
    # At a rate of 0 a step takes the same time, and no loss can diverge.
    set_learning_rate(stepper.optimizer, 0.0)
    stepper.model.train()
    rows = max(map(len, run.store.of_role("train").values()))
    most = min(rows, config.max_batch_size or rows)
    on_host = host_memory.Peak() if stepper.device.type == "cpu" else None
    sizes: list[Size] = []
    end = f"max_batch_size is {most:,}" if most == config.max_batch_size else f"there are {rows:,} training rows"
    for batch_size in _sizes(2 if compares else 1, most):
        if on_host is not None and sizes and 2 * on_host.bytes() > SHARE * host_memory.of_machine()[0]:
            end = f"{batch_size} examples might take more than {SHARE:.0%} of the free memory"
            break
        advance(batch_size)
        try:
            found = _measured(run, config, batch_size, on_host)
        except OutOfMemory:
            if not sizes:
                raise
            found = None
        if found is None:
            release(stepper.device)
            end = f"memory ran out with {batch_size} examples"
            break
        sizes.append(found)
        fastest = [max(size.real_tokens_per_s for size in sizes[:count]) for count in range(1, len(sizes) + 1)]
        if len(sizes) > DOUBLINGS and fastest[-1] * CLOSE <= fastest[-1 - DOUBLINGS]:
            end = NO_FASTER
            break
    scanned = BatchScan(sizes, device_name(stepper.device), end, config.trainer, compares)
    scanned.notes = list(_notes(scanned))
    return scanned


def _sizes(first: int, most: int) -> Iterator[int]:
    size = first
    while size <= most:
        yield size
        size *= 2


def _measured(run: Training, config: Scan, batch_size: int, on_host: host_memory.Peak | None) -> Size | None:
    """Measure some steps of one micro-batch of this size; returns None if memory ran out."""
    stepper, trainer = run.stepper, replace(config.trainer, batch_size=batch_size, accumulation=1)
    run.order = order_of(replace(config, trainer=trainer), run.store, stepper.ranks)
    for number in range(WARMUP):
        stepper.read(take_step(run, number))
    # Only now, since the first steps of a size make memory that the others use again.
    is_known = on_host is None or on_host.restart()
    if on_host is None:
        peak_mb(stepper.device)
    pending: deque[Step] = deque()
    began_s, number = time.perf_counter(), WARMUP
    while (done := number - WARMUP) < config.num_steps or time.perf_counter() - began_s < LEAST_S:
        if done >= LEAST_STEPS and time.perf_counter() - began_s > MOST_S:
            break
        pending.append(take_step(run, number))
        number += 1
        # As in the training loop, an accelerator runs one step ahead of the host.
        while len(pending) > stepper.is_asynchronous:
            stepper.read(pending.popleft())
    while pending:
        stepper.read(pending.popleft())
    elapsed_s = time.perf_counter() - began_s
    if stepper.pieces > 1:
        return None
    counts = [size_of_step(run, each) for each in range(WARMUP, number)]
    examples, tokens = sum(count[0] for count in counts), sum(count[1] for count in counts)
    peak = (peak_mb(stepper.device) if on_host is None else host_memory.peak_bytes() / 1e6) if is_known else None
    return Size(
        batch_size, number - WARMUP, elapsed_s / (number - WARMUP), examples / elapsed_s, tokens / elapsed_s, peak
    )


def _notes(scanned: BatchScan) -> Iterator[str]:
    size, wanted = scanned.recommended.batch_size, scanned.step_examples
    if scanned.compares:
        yield f"{scanned.compares} compares the rows of a micro-batch, so its size also changes what is learned"
    elif wanted is not None and wanted % size:
        examples = size * scanned.trainer.accumulation
        yield (
            f"a step then has {examples:,} examples instead of {wanted:,}, which changes the best rate: "
            "python -m nlu.scan of=lr"
        )
    if scanned.best is scanned.sizes[-1] and scanned.end != NO_FASTER:
        yield f"the largest size was the fastest; larger ones were not measured, since {scanned.end}"
