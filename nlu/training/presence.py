"""Where each rank is, as the others see it, so that a rank that does not answer can be named.

A thread of each rank writes to the store where the ranks have met, every few seconds. Nothing is read unless an
exchange fails or takes longer than `trainer.timeout_min`.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

BEAT_S = 5.0
SHOWN = 8
"""ranks that a message names"""
PREFIX = "nlu-presence"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Seen:
    """What a rank has written of itself."""

    beat: int
    place: str
    is_waiting: bool
    """whether it is in an exchange, where it waits for the others"""
    for_s: float
    """how long"""
    pid: int
    host: str


class Presence:
    """Writes where this rank is, and reads where the others are."""

    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self._store = dist.PrefixStore(PREFIX, store)
        self._rank, self._world_size = rank, world_size
        self._place, self._is_waiting, self._since_s = "its start", False, time.monotonic()
        self._beat = 0
        self._has_ended = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep_writing, name="presence", daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Note where this rank is, in words such as `step 12`."""
        self._place, self._since_s = place, time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that this rank waits for the others in the block."""
        self._is_waiting, self._since_s = True, time.monotonic()
        # After an error it stays: the rank did wait.
        yield
        self._is_waiting, self._since_s = False, time.monotonic()

    def end(self) -> None:
        """Stop writing."""
        self._has_ended.set()
        # It may wait for a store that does not answer.
        self._thread.join(timeout=BEAT_S)

    def missing(self) -> str:
        """Return which ranks the others wait for, and where these were last. Takes two beats, or at most six."""
        before = self._read()
        time.sleep(2 * BEAT_S)
        now = self._read()
        if before is None or now is None:
            return "rank 0, at whose address the ranks meet, does not answer"
        said = []
        for rank in range(self._world_size):
            if rank == self._rank:
                continue
            one = now.get(rank)
            if one is None:
                said.append(f"rank {rank} has not begun")
                continue
            who = f"rank {rank} (process {one.pid} on {one.host})"
            if rank in before and before[rank].beat == one.beat:
                said.append(f"{who} has ended, or its machine does not answer; it was last in {one.place}")
            elif not one.is_waiting:
                said.append(f"{who} runs, and has been in {one.place} for {one.for_s:,.0f} s")
        if not said:
            return "all ranks run and wait for one another, so messages between them are lost"
        return "; ".join(said[:SHOWN]) + (f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else "")

    def _read(self) -> dict[int, _Seen] | None:
        """Return what each rank has written, or None if the store does not answer.

        A store whose process is stopped keeps its connections open, and a request to it then waits without a limit.
        """
        found: list[dict[int, _Seen]] = []

        def read() -> None:
            try:
                keys = {rank: str(rank) for rank in range(self._world_size) if self._store.check([str(rank)])}
                found.append({rank: _Seen(**json.loads(self._store.get(key))) for rank, key in keys.items()})
            except RuntimeError as error:
                log.debug("presence: %s", error)

        thread = threading.Thread(target=read, name="presence-read", daemon=True)
        thread.start()
        thread.join(timeout=2 * BEAT_S)
        return found[0] if found else None

    def _write(self) -> None:
        self._beat += 1
        for_s = time.monotonic() - self._since_s
        own = _Seen(self._beat, self._place, self._is_waiting, for_s, os.getpid(), socket.gethostname())
        self._store.set(str(self._rank), json.dumps(vars(own)))

    def _keep_writing(self) -> None:
        while not self._has_ended.wait(BEAT_S):
            try:
                self._write()
            except RuntimeError as error:
                # The rank that holds the store has ended; the next exchange fails.
                log.debug("presence: %s", error)
                return
