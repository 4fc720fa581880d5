"""Threads of the matrix library spin while cores are idle, and sleep while other programs use them.

Two threads share each operator of a step and wait for one another hundreds of times in it. A sleeping thread takes
microseconds to wake up, which costs a small model a fifth of its speed. A spinning thread does not, but where another
program needs its core, all threads wait for the one that has lost it, and training becomes two to ten times slower.

GNU OpenMP lets no thread spin while a process has more threads of its own than cores (GOMP_SPINCOUNT in its manual).
So this module keeps a further team of sleeping threads while cores are busy. Linux tells whether they are: it counts
how long each thread of this process had to wait for a core. The number of threads that compute, and so the bytes of a
run, stay the same.
"""

import ctypes
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from nlu.config.waiting import may_spin
from nlu.training.hardware import cpu_limit

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
BUSY, IDLE = 0.15, 0.04
"""the share of the time that a thread waits for a core: below 0.01 on idle cores, 0.3 beside a program that computes"""
FIRST_CALM_S, LONGEST_CALM_S = 0.5, 60.0
TASKS = Path("/proc/self/task")


class Judge:
    """Decides from what is seen whether threads should spin: not before cores were idle for a while.

    Each time that cores become busy again, the while doubles, up to `LONGEST_CALM_S`. Otherwise a program that comes
    and goes would meet spinning threads half of the time.
    """

    def __init__(self) -> None:
        self.spins = False
        self._calm_s = 0.0
        self._needed_s = FIRST_CALM_S

    def see(self, share: float, lasted_s: float) -> bool:
        """Return whether to spin, after `lasted_s` in which the thread that waited longest waited for this share."""
        if share > BUSY:
            if self.spins:
                self._needed_s = min(2 * self._needed_s, LONGEST_CALM_S)
            self.spins, self._calm_s = False, 0.0
        elif share > IDLE and not self.spins:
            self._calm_s = 0.0
        else:
            self._calm_s += lasted_s
            self.spins = self.spins or self._calm_s >= self._needed_s
            if self._calm_s > LONGEST_CALM_S:
                self._needed_s = FIRST_CALM_S
        return self.spins


class Team:
    """A team of sleeping threads. While it exists, the process has more threads than cores, so none of them spins."""

    def __init__(self, library: ctypes.CDLL, size: int):
        """Begin a team of `size` threads, of which one is Python's."""
        self._library, self._size = library, size
        self._thread: threading.Thread | None = None
        self.begin()

    @property
    def exists(self) -> bool:
        return self._thread is not None

    def begin(self) -> None:
        """Begin the team, and return when it exists."""
        started, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._hold, args=(started, self._ended), name="nlu-no-spinning", daemon=True
        )
        self._thread.start()
        started.wait()

    def end(self) -> None:
        """End the team, if it exists; as soon as its threads have ended, others may spin again."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _hold(self, started: threading.Event, ended: threading.Event) -> None:
        # Any function that takes nothing would do. The team of a thread exists until the thread ends.
        nothing = ctypes.cast(self._library.omp_in_parallel, ctypes.c_void_p)
        self._library.GOMP_parallel(nothing, None, ctypes.c_uint(self._size), ctypes.c_uint(0))
        started.set()
        ended.wait()


@contextmanager
def spinning_on_idle_cores(device: torch.device) -> Iterator[None]:
    """Let torch's threads spin in the block while cores are idle, if `nlu.config.waiting` allows this process to spin.

    Everything that computes belongs in the block: after it, nothing stops threads from spinning. In the block they
    never spin if the device is not a CPU, or if the container may use only a part of its cores' time.
    """
    threads, library = torch.get_num_threads(), gnu_openmp()
    if not may_spin() or threads < 2 or library is None:
        yield
        return
    cores = library.omp_get_num_procs()
    # With torch's threads one more than cores; the thread that has the team counts in neither.
    team = Team(library, max(2, cores - threads + 2))
    is_over = threading.Event()
    watching = threading.Thread(target=_watch, args=(team, is_over), name="nlu-spinning", daemon=True)
    # Spinning would use up such a container's time.
    if device.type == "cpu" and cpu_limit() >= cores:
        watching.start()
    try:
        yield
    finally:
        is_over.set()
        if watching.ident is not None:
            watching.join()
        team.end()


def _watch(team: Team, is_over: threading.Event) -> None:
    """Look at how long threads wait for cores until `is_over`, and keep the team while cores are busy."""
    judge = Judge()
    looked_s, before = time.perf_counter(), waited_s()
    while not is_over.wait(LOOK_EVERY_S):
        now_s, after = time.perf_counter(), waited_s()
        # What cannot be seen counts as busy.
        longest_s = max((seconds - before.get(thread, 0.0) for thread, seconds in after.items()), default=now_s)
        spins = judge.see(longest_s / (now_s - looked_s), now_s - looked_s)
        looked_s, before = now_s, after
        if spins and team.exists:
            team.end()
            log.debug("cores are idle: threads spin while they wait")
        elif not spins and not team.exists:
            team.begin()
            log.debug("other programs use the cores: threads sleep while they wait")


def waited_s() -> dict[str, float]:
    """Return how long each thread of this process has waited for a core so far, by its number; empty if unknown."""
    found = {}
    try:
        for thread in os.listdir(TASKS):
            # One may have ended since.
            with suppress(FileNotFoundError, ProcessLookupError):
                found[thread] = int((TASKS / thread / "schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return {}
    return found


def gnu_openmp() -> ctypes.CDLL | None:
    """Return the GNU OpenMP that this process has loaded, if any."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = list(dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line))
    # Other packages may bring a copy, which torch's threads do not use.
    ours = [path for path in paths if f"{os.sep}torch" in path] or paths
    return ctypes.CDLL(ours[0]) if ours else None
