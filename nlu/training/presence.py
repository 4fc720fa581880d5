"""Which ranks do not answer, by the store where all have met. Nothing is written or read until an exchange fails."""

import os
import socket
import threading
import time

import torch.distributed as dist

GRACE_S = 10.0
"""within which ranks that wait for the same exchange say so"""
SHOWN = 8
"""ranks that a message names"""
NO_STORE = "rank 0, at whose address the ranks meet, does not answer"


class Presence:
    """Names this rank to the others, and those that are silent when an exchange has failed."""

    def __init__(self, store: dist.Store, rank: int, world_size: int):
        self._store = dist.PrefixStore("nlu-presence", store)
        self._rank, self._world_size = rank, world_size
        self.place = "its start"
        """where this rank is, in words such as `step 12`"""
        self._store.set(f"who-{rank}", f"process {os.getpid()} on {socket.gethostname()}")

    def missing(self) -> str:
        """Say that this rank waits, and return which others do not. Takes GRACE_S, or at most three times as long."""
        said: list[str] = []
        # A store whose process is stopped keeps its connections open, and a request to it then waits without a limit.
        asking = threading.Thread(target=lambda: said.append(self._silent()), name="presence", daemon=True)
        asking.start()
        asking.join(timeout=3 * GRACE_S)
        return f"{said[0] if said else NO_STORE}; this rank waits in {self.place}"

    def _silent(self) -> str:
        try:
            self._store.set(f"waits-{self._rank}", "")
            time.sleep(GRACE_S)
            ranks = [rank for rank in range(self._world_size) if not self._store.check([f"waits-{rank}"])]
            names = [f"rank {rank} ({self._name(rank)})" for rank in ranks[:SHOWN]]
        except RuntimeError:
            return NO_STORE
        if not ranks:
            return "all ranks wait for one another, so messages between them are lost"
        more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
        return f"{', '.join(names)}{more} did not answer: hangs, has ended, or its machine is away"

    def _name(self, rank: int) -> str:
        return self._store.get(f"who-{rank}").decode() if self._store.check([f"who-{rank}"]) else "has not begun"
