"""Memory of this machine, this process and the device: what is free, what some work has taken, and when it runs out.

Running out is recognized by the error; then memory is released, and the batch is divided.
"""

import ctypes
import gc
import logging
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
import torch

from nlu.config.errors import OutOfMemory
from nlu.tasks.task import Task, comparing_loss
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)

MEMINFO, OWN_GROUP, CGROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""files of a control group, and the name in its memory.stat of files in memory that are given up when it needs more"""
Result = TypeVar("Result")
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""in messages of errors of torch that have no class of their own"""
STATM = Path("/proc/self/statm")
MOST_KEPT = 128 << 20
"""bytes that a process which predicts may grow by before it returns what it has freed"""
REMEDY = "set data.max_len lower, choose a smaller model, or use a device with more memory"


def free_bytes() -> int:
    """Return the free bytes of this machine, or those below the limit of its container, service or Slurm job."""
    (available,) = (line.split()[1] for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    free = [1024 * int(available)]
    # /proc/meminfo shows the whole machine inside a container too.
    own = OWN_GROUP.read_text().splitlines() if OWN_GROUP.exists() else []
    for mark, root, (limit, used, reclaimable) in (("0::", CGROUP, V2), (":memory:", CGROUP / "memory", V1)):
        group = PurePosixPath(next((line.partition(mark)[2] for line in own if mark in line), "").lstrip("/"))
        for folder in (root / each for each in (group, *group.parents)):
            # Without a limit, or a group that is not visible in a container.
            with suppress(OSError, ValueError):
                most, taken = (int((folder / name).read_text()) for name in (limit, used))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                free.append(most - taken + int(stat.get(reclaimable, 0)))
    return min(free)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory of the device or of the host could not be allocated."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def release(device: torch.device) -> None:
    """Return memory that nothing uses any more to the device. Call it outside of the `except` block of the error, whose
    traceback keeps the tensors of the pass that failed."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        # glibc keeps memory for the next batch (`nlu.training.ranks.keep_freed_memory`).
        trim(0)


class KeptMemory:
    """Returns the memory that calls have freed to the system, whenever a process has grown by MOST_KEPT since.

    glibc cannot use again what lies in small pieces between other objects: without this, a process that predicts texts
    of all lengths grew by 500 MB in 2,000 calls.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._least = resident_bytes()

    def limit(self) -> None:
        """Call it when a call has freed its memory."""
        if self._trim is not None and resident_bytes() > self._least + MOST_KEPT:
            self._trim(0)
            self._least = resident_bytes()


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, 0 where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def peak_mb(device: torch.device) -> float:
    """Return the largest memory in use, in millions of bytes.

    On CUDA it is that of tensors on the device since the last call. On a CPU it is the resident memory of the process
    since its start: the kernel can reset that number, but other programs, such as a queue that limits jobs, read it.
    """
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 1e6
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    # In bytes on macOS, in units of 1024 bytes elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@contextmanager
def refused(said: str) -> Iterator[None]:
    """Raise OutOfMemory if memory runs out in the block, which cannot be divided."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{said}; {REMEDY}") from None


def tried(work: Callable[[], Result]) -> Result | None:
    """Return the result of `work`, which must not be None, or None if memory ran out."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return None


def divided(micro_batches: list[np.ndarray], pieces: int) -> list[np.ndarray]:
    """Return each micro-batch as `pieces` consecutive pieces, whose sizes differ by at most one; some may be empty.

    The number of pieces does not depend on the rows, so the lists of all ranks correspond to one another.
    """
    if pieces == 1:
        return micro_batches
    return [piece for examples_B in micro_batches for piece in np.array_split(examples_B, pieces)]


def more_pieces(micro_batches: list[np.ndarray], pieces: int, ranks: Ranks, task: Task, number: int) -> int:
    """Return twice as many pieces, after memory ran out in step `number` on a rank.

    Raises the same OutOfMemory on all ranks if a micro-batch cannot be divided further.
    """
    largest = int(max(ranks.all_on_host(float(max(map(len, micro_batches))))))
    before = -(-largest // pieces)
    where = "" if ranks.world_size == 1 else " of a rank"
    said = f"memory ran out in step {number}, in a micro-batch{where} of {before} example{'s' * (before > 1)}"
    if (loss := comparing_loss(task)) is not None:
        raise OutOfMemory(
            f"{said}, which is not divided, because {loss} compares its examples with one another; "
            f"set trainer.batch_size (or trainer.batch_tokens) lower; or {REMEDY}"
        )
    if before == 1:
        raise OutOfMemory(f"{said}, which cannot be divided; {REMEDY}")
    log.warning(
        "%s; from here on it is computed in parts of %d, which changes the update by no more than rounding",
        said,
        -(-largest // (2 * pieces)),
    )
    return 2 * pieces


def by_parts(
    work: Callable[[np.ndarray], Result], batches: Iterable[np.ndarray], device: torch.device
) -> Iterator[tuple[np.ndarray, Result]]:
    """Yield the examples of each batch with the result of `work`, which must not be None.

    A batch for which memory runs out is halved until it fits, and later batches are computed in parts of that size. So
    `work` must give each example the same result in any batch, and change nothing if it fails. Raises OutOfMemory for
    an example that does not fit by itself.
    """
    most: int | None = None
    for examples_B in batches:
        waiting = deque(np.array_split(examples_B, -(-len(examples_B) // most)) if most else [examples_B])
        while waiting:
            part_B = waiting.popleft()
            result = tried(partial(work, part_B))
            if result is not None:
                yield part_B, result
                continue
            release(device)
            if len(part_B) == 1:
                raise OutOfMemory(f"memory ran out for a single example; {REMEDY}")
            halves = np.array_split(part_B, 2)
            most = min(most or len(part_B), len(halves[0]))
            log.warning("memory ran out for a batch of %d examples; from here on batches have %d", len(part_B), most)
            waiting.extendleft(reversed(halves))
