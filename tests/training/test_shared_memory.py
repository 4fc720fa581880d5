"""Messages between threads and processes through memory that they share."""

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from nlu.storage.heartbeat import identity_of
from nlu.sweeps.faults import ProcessLost
from nlu.training import shared_memory
from nlu.training.shared_memory import MESSAGE_NUMBERS, Room, floats_in, mapped, new_descriptor, room_for

SELF = identity_of(os.getpid())


def in_rooms(count: int, work: Callable[[Room], Any]) -> list[Any]:
    """Return what the work gives in a thread for each rank; all see one memory."""
    size = Room.size(count)
    descriptor = new_descriptor(size)
    rooms = [Room(mapped(descriptor, size), rank, [SELF] * count, 60) for rank in range(count)]
    os.close(descriptor)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, rooms))


def test_numbers_are_added_in_the_order_of_ranks_to_the_bit_on_all_of_them() -> None:
    # In float64 the result depends on the order: 1 is lost beside 2 ** 53, except after its opposite.
    numbers = [2.0**53, 1.0, -(2.0**53)]
    assert in_rooms(3, lambda room: room.sum([numbers[room.rank], room.rank])) == [[0.0, 3.0]] * 3


def test_many_messages_of_all_lengths_never_mix() -> None:
    lengths = [0, 1, 7, MESSAGE_NUMBERS, MESSAGE_NUMBERS + 1, 3] * 5

    def work(room: Room) -> list[np.ndarray]:
        return [room.all(np.arange(length) * 10.0 + room.rank + number) for number, length in enumerate(lengths)]

    for found in in_rooms(3, work):
        for number, (length, values_WN) in enumerate(zip(lengths, found, strict=True)):
            expected_N = np.arange(length) * 10.0 + number
            np.testing.assert_array_equal(values_WN, [expected_N, expected_N + 1, expected_N + 2])


def test_what_was_written_before_a_meeting_is_seen_after_it() -> None:
    def work(room: Room) -> list[float]:
        memory = room.share(4 * 1000)
        assert memory is not None
        line, seen = floats_in(memory, 0, 1000), []
        for step in range(40):
            if step % 2 == room.rank:
                line[500] = step
            room.meet()
            seen.append(line[500].item())
            room.meet()
        return seen

    assert in_rooms(2, work) == [list(range(40))] * 2


def test_shared_memory_has_no_name_and_begins_with_0(tmp_path: Any) -> None:
    before = set(os.listdir("/dev/shm"))

    def work(room: Room) -> float:
        memory = room.share(4 << 20)
        assert memory is not None and not set(os.listdir("/dev/shm")) - before
        return floats_in(memory, 0, 1 << 20).abs().sum().item()

    assert in_rooms(2, work) == [0.0, 0.0]


def test_memory_that_one_rank_cannot_open_is_given_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, descriptor: int) -> int:
        raise PermissionError(13, "hidden")

    monkeypatch.setattr(shared_memory, "opened", refuse)
    assert in_rooms(2, lambda room: room.share(4096)) == [None, None]
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: room_for(store, rank, 2, 5), range(2))) == [None, None]


def test_memory_for_which_one_rank_has_no_address_space_is_given_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped(descriptor: int, size: int) -> mmap.mmap:
        if size == 8192 and threading.get_ident() in narrow:
            raise OSError(12, "Cannot allocate memory")
        return whole(descriptor, size)

    narrow: set[int] = set()
    whole = shared_memory.mapped
    monkeypatch.setattr(shared_memory, "mapped", mapped)

    def work(room: Room) -> tuple[bool, bool]:
        if room.rank == 1:
            narrow.add(threading.get_ident())
        return room.share(8192) is None, room.share(4096) is None

    assert in_rooms(2, work) == [(True, False)] * 2


def test_ranks_of_two_machines_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {threading.get_ident(): "first"}
    monkeypatch.setattr(
        shared_memory, "identity_of",
        lambda pid: {**SELF, "machine": names.get(threading.get_ident(), "second")},
    )  # fmt: skip
    store, found = dist.HashStore(), []
    second = threading.Thread(target=lambda: found.append(room_for(store, 1, 2, 5)))
    second.start()
    found.append(room_for(store, 0, 2, 5))
    second.join()
    assert found == [None, None]


def test_a_rank_that_has_ended_is_named_at_once_and_one_that_hangs_after_the_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        theirs = identity_of(other.pid)
        descriptor = new_descriptor(Room.size(2))
        room = Room(mapped(descriptor, Room.size(2)), 0, [SELF, theirs], 1.0)
        os.close(descriptor)
        with pytest.raises(ProcessLost, match="Timed out: rank 1 did not come within 1 s"):
            room.meet()
        other.kill()
        other.wait()
        with pytest.raises(ProcessLost, match="rank 1 ended while this one waited for it"):
            room.meet()
