"""Memory that the ranks of one machine share: small messages, waiting for one another, and tensors that all see.

The memory has no name in any file system, so nothing is left of it when all ranks have ended, however they end. It does
not count towards the size of /dev/shm, which is small in many containers.

A rank waits by looking at a counter in the memory, and leaves its core to other threads between two looks. If it waits
for longer, it sleeps until the counter changes (futex(2)), so that the system can give its core to a rank that has to
share one. So an exchange between idle cores takes microseconds, and a rank that waits takes nothing from other
processes.

Axes: W ranks of the machine, N numbers of a message.
"""

import ctypes
import json
import logging
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from nlu.storage.heartbeat import has_ended, identity_of
from nlu.sweeps.faults import ProcessLost

log = logging.getLogger(__name__)

LINE_BYTES = 128
"""between two counters, so that no two ranks write to the same or to neighboring lines of a cache"""
MESSAGE_NUMBERS = 8192
"""the most numbers that a rank can give to one message; longer ones are divided"""
SPIN_S = 200e-6
"""how long a rank looks without a pause: longer than most waits between idle cores"""
LOOK_S = 0.5
"""the time between two looks at whether the others still live"""
SLEEP_S = 500e-6
"""between two looks at the counters, where the system call is not known"""
FUTEX = {"x86_64": 202, "aarch64": 98}
"""the number of the system call"""
FUTEX_WAIT, FUTEX_WAKE, ALL = 0, 1, 2**31 - 1
KEY = "nlu-shared-memory"


def mapped(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def new_descriptor(size: int) -> int:
    """Return the descriptor of new memory, all 0, which takes no space until it is written to. Raises OSError."""
    descriptor = os.memfd_create("nlu", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def opened(process: int, descriptor: int) -> int:
    """Return a descriptor of the memory that another process of this user has under `descriptor`. Raises OSError."""
    return os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


class Room:
    """Where the ranks of one machine meet; every rank makes each call below, in the same order.

    Raises ProcessLost where another rank has ended, or does not come within the time.
    """

    def __init__(self, memory: mmap.mmap, rank: int, members: list[Mapping[str, object]], timeout_s: float):
        """`members`: the identity of each process, by rank."""
        self.rank, self.world_size = rank, len(members)
        self._members, self._timeout_s = members, timeout_s
        counters = np.frombuffer(memory, np.int32, self.world_size * LINE_BYTES // 4)
        self._arrived_W = counters[:: LINE_BYTES // 4]
        """the number of meetings that each rank has come to"""
        numbers = np.frombuffer(memory, np.float64, offset=_counter_bytes(self.world_size))
        # In turns: a rank can only write its second next message when all others have read this one.
        self._messages_2WN = numbers.reshape(2, self.world_size, MESSAGE_NUMBERS)
        self._meetings = 0
        self._counters = [counters.ctypes.data + rank * LINE_BYTES for rank in range(self.world_size)]
        """their addresses"""

    @staticmethod
    def size(world_size: int) -> int:
        """Return the bytes of the memory."""
        return _counter_bytes(world_size) + 2 * world_size * MESSAGE_NUMBERS * 8

    def meet(self) -> None:
        """Wait until all ranks are here. Then each sees what the others have written before."""
        self._meetings += 1
        # A call of the scheduler is a full memory barrier on every processor: what this rank has written is visible
        # before its counter is, and what the others have written is read after their counters.
        os.sched_yield()
        self._arrived_W[self.rank] = self._meetings
        _wake(self._counters[self.rank])
        self._wait(self._meetings)
        os.sched_yield()

    def all(self, numbers: list[float] | np.ndarray) -> np.ndarray:
        """Return the numbers of each rank as (W, N), float64; all give equally many."""
        own_N = np.asarray(numbers, np.float64)
        found_WN = np.empty((self.world_size, len(own_N)))
        for start in range(0, len(own_N), MESSAGE_NUMBERS):
            part_N = own_N[start : start + MESSAGE_NUMBERS]
            messages_WN = self._messages_2WN[self._meetings % 2]
            messages_WN[self.rank, : len(part_N)] = part_N
            self.meet()
            found_WN[:, start : start + len(part_N)] = messages_WN[:, : len(part_N)]
        return found_WN

    def sum(self, numbers: list[float]) -> list[float]:
        """Return the sum of each number over all ranks, in float64, added in the order of ranks."""
        found_WN = self.all(numbers)
        total_N = found_WN[0].copy()
        for own_N in found_WN[1:]:
            total_N += own_N
        return total_N.tolist()

    def share(self, size: int) -> mmap.mmap | None:
        """Return new memory of so many bytes, all 0, that all ranks see; None on all of them if one cannot have it."""
        descriptor, process = -1, os.getpid()
        if self.rank == 0:
            descriptor = _or_none(lambda: new_descriptor(size))
        # The numbers of process and descriptor are exact in float64.
        process, theirs = (int(number) for number in self.all([process, descriptor])[0])
        if self.rank and theirs >= 0:
            descriptor = _or_none(lambda: opened(process, theirs))
        memory = _mapped_or_none(descriptor, size)
        # Rank 0 keeps its descriptor open until the others have opened it.
        has_it = not self.sum([float(memory is None)])[0]
        if descriptor >= 0:
            os.close(descriptor)
        if memory is not None and not has_it:
            memory.close()
        return memory if has_it else None

    def _wait(self, meeting: int) -> None:
        arrived_W = self._arrived_W
        if (arrived_W >= meeting).all():
            return
        began_s = time.monotonic()
        looked_s = began_s
        while True:
            now_s = time.monotonic()
            if now_s - began_s < SPIN_S:
                os.sched_yield()
            else:
                absent = int(np.argmin(arrived_W))
                _sleep(self._counters[absent], int(arrived_W[absent]), meeting)
            if (arrived_W >= meeting).all():
                return
            if now_s - looked_s > LOOK_S:
                looked_s = now_s
                self._require_all(meeting, now_s - began_s)

    def _require_all(self, meeting: int, waited_s: float) -> None:
        ended = [rank for rank, one in enumerate(self._members) if rank != self.rank and has_ended(one)]
        # Read again: a rank may have come here and then ended as it should.
        absent = [int(rank) for rank in np.flatnonzero(self._arrived_W < meeting)]
        if lost := [rank for rank in ended if rank in absent]:
            raise ProcessLost(f"{_named(lost)} ended while this one waited for it")
        if absent and waited_s > self._timeout_s:
            raise ProcessLost(f"Timed out: {_named(absent)} did not come within {self._timeout_s:,.0f} s")


class OwnRoom:
    """The room of a single process: it waits for nobody, and only it sees the memory."""

    rank, world_size = 0, 1

    def meet(self) -> None:
        """Return at once."""

    def all(self, numbers: list[float] | np.ndarray) -> np.ndarray:
        """Return the numbers as (1, N), float64."""
        return np.array(numbers, np.float64)[None]

    def share(self, size: int) -> mmap.mmap | None:
        """Return new memory of so many bytes, all 0, in large pages if the system has them; None if there is none."""
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        try:
            memory = mmap.mmap(-1, size, **flags)
        except (OSError, ValueError, OverflowError) as error:
            log.debug("memory for weights: %s", error)
            return None
        try:
            # With pages of 4 KiB, an update waits for their addresses.
            memory.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError) as error:
            log.debug("large pages: %s", error)
        return memory


def _sleep(address: int, seen: int, wanted: int) -> None:
    """Sleep while a counter is the one that was seen, unless that is the one that is wanted; at most for a while."""
    if seen >= wanted:
        return
    if _CALL is None:
        time.sleep(SLEEP_S)
        return
    until = _Timespec(0, int(LOOK_S * 1e9))
    _CALL[0](_CALL[1], ctypes.c_void_p(address), FUTEX_WAIT, ctypes.c_uint32(seen), ctypes.byref(until), None, 0)


def _wake(address: int) -> None:
    """Wake those that sleep at a counter."""
    if _CALL is not None:
        _CALL[0](_CALL[1], ctypes.c_void_p(address), FUTEX_WAKE, ctypes.c_uint32(ALL), None, None, 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _system_call() -> tuple[Callable[..., int], ctypes.c_long] | None:
    """Return the function of a system call and the number of futex; None where it is not known."""
    number, call = FUTEX.get(platform.machine()), getattr(ctypes.CDLL(None), "syscall", None)
    if sys.platform != "linux" or number is None or call is None:
        return None
    call.restype = ctypes.c_long
    return call, ctypes.c_long(number)


_CALL = _system_call()


def _named(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


def _counter_bytes(world_size: int) -> int:
    return -(-world_size * LINE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


def _or_none(descriptor: Callable[[], int]) -> int:
    """Return a descriptor, or -1 if it cannot be had."""
    try:
        return descriptor()
    # Some systems lack memfd_create, and some have no /proc, or hide in it what belongs to others.
    except (OSError, AttributeError) as error:
        log.debug("shared memory: %s", error)
        return -1


def _mapped_or_none(descriptor: int, size: int) -> mmap.mmap | None:
    """Return the memory of a descriptor; None if there is none, or no address space for it."""
    try:
        return mapped(descriptor, size) if descriptor >= 0 else None
    except OSError as error:
        log.debug("shared memory: %s", error)
        return None


def room_for(store: dist.Store, rank: int, world_size: int, timeout_s: float) -> Room | None:
    """Return the room of all ranks, which run on this machine; None on all of them if one cannot share memory.

    They agree through the store, at which they have met.
    """
    store, size = dist.PrefixStore(KEY, store), Room.size(world_size)
    descriptor = _or_none(lambda: new_descriptor(size)) if rank == 0 else -1
    if rank == 0:
        store.set("offered", json.dumps([os.getpid(), descriptor]))
    else:
        process, theirs = json.loads(store.get("offered"))
        if theirs >= 0:
            descriptor = _or_none(lambda: opened(process, theirs))
    memory = _mapped_or_none(descriptor, size)
    said = json.dumps(identity_of(os.getpid()) if memory is not None else None)
    store.set(str(rank), said)
    members = [json.loads(store.get(str(other))) for other in range(world_size)]
    # Without /proc, or in another container, no rank could see that another one has ended.
    machines = {None if one is None else one.get("machine") for one in members}
    # Rank 0 keeps its descriptor open until the others have opened it; each has said so above.
    if descriptor >= 0:
        os.close(descriptor)
    if memory is None or len(machines) > 1 or None in machines:
        return None
    return Room(memory, rank, members, timeout_s)


def floats_in(memory: mmap.mmap, start: int, count: int) -> Tensor:
    """Return `count` float32 numbers of a memory from number `start` on. Tensors of the same numbers are separate to
    torch: each has its own storage, and keeps the memory."""
    return torch.from_numpy(np.frombuffer(memory, np.float32, count, offset=4 * start))
