"""Threads of the matrix library spin while cores are idle, and sleep while other programs use them.

Two threads share each operator of a step and wait for one another hundreds of times in it. A sleeping thread takes
microseconds to wake up, which costs a small model a fifth of its speed. A spinning thread does not, but where another
program needs its core, all threads wait for the one that has lost it, and training becomes two to ten times slower.

GNU OpenMP lets no thread spin while a process has more threads of its own than cores (GOMP_SPINCOUNT in its manual).
So this module has a further team of threads, asleep, exist while cores are busy. Whether they are is read from Linux:
how long threads of this process had to wait for a core. The number of threads that compute, and so the bytes of a run,
stay the same.
"""

import ctypes
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from nlu.config.waiting import may_spin
from nlu.runs.provenance import usable_cores
from nlu.training.hardware import cpu_limit

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
BUSY, IDLE = 0.15, 0.04
"""the share of the time that a thread waits for a core: below 0.01 on idle cores, 0.3 beside a program that computes"""
FIRST_CALM_S, LONGEST_CALM_S = 0.5, 60.0
TASKS = Path("/proc/self/task")


class Judge:
    """Decides from what is seen whether threads should spin: not before cores were idle for a while.

    Each time that cores become busy again, the while is twice as long, up to `LONGEST_CALM_S`, so that a program that
    comes and goes does not have threads spin half of the time.
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
    """A team of sleeping threads, so many that no thread of the process spins while the team exists."""

    def __init__(self, library: ctypes.CDLL, size: int):
        """Have `size` threads exist, the caller's included, until `end`."""
        self._ended = threading.Event()
        started = threading.Event()

        def hold() -> None:
            # Any function that takes nothing would do. The team of a thread exists until the thread ends.
            nothing = ctypes.cast(library.omp_in_parallel, ctypes.c_void_p)
            library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
            started.set()
            self._ended.wait()

        self._thread = threading.Thread(target=hold, name="nlu-no-spinning", daemon=True)
        self._thread.start()
        started.wait()

    def end(self) -> None:
        """End the team; as soon as its threads have ended, threads may spin again."""
        self._ended.set()
        self._thread.join()


@contextmanager
def spinning_on_idle_cores(device: torch.device) -> Iterator[None]:
    """Let torch's threads spin in the block whenever cores are idle, if `nlu.config.waiting` allows them to spin.

    In the block, and after it, they sleep while cores are busy. It does nothing with one thread, on a device that is no
    CPU, and where torch uses another library than GNU OpenMP, which then never spins with the environment of nlu.
    """
    threads, cores = torch.get_num_threads(), usable_cores()
    if not may_spin() or device.type != "cpu" or threads < 2 or threads > cores or (library := gnu_openmp()) is None:
        yield
        return
    # One more than cores, with torch's threads, of which the main one is not counted twice.
    size = max(2, cores - threads + 2)
    if cpu_limit() < cores:
        # A container that may use only a part of its cores' time would spend it on spinning.
        team = Team(library, size)
        try:
            yield
        finally:
            team.end()
        return
    is_over = threading.Event()
    watching = threading.Thread(target=_watch, args=(library, size, is_over), name="nlu-spinning", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()


def _watch(library: ctypes.CDLL, size: int, is_over: threading.Event) -> None:
    """Look at how long threads wait for cores until `is_over`, and have a team exist whenever cores are busy."""
    judge = Judge()
    team: Team | None = Team(library, size)
    looked_s, before = time.perf_counter(), waited_s()
    while not is_over.wait(LOOK_EVERY_S):
        now_s, after = time.perf_counter(), waited_s()
        longest_s = max((seconds - before.get(thread, 0.0) for thread, seconds in after.items()), default=0.0)
        spins = judge.see(longest_s / (now_s - looked_s), now_s - looked_s)
        looked_s, before = now_s, after
        if spins and team is not None:
            team.end()
            team = None
            log.debug("cores are idle: threads spin while they wait")
        elif not spins and team is None:
            team = Team(library, size)
            log.debug("other programs use the cores: threads sleep while they wait")
    if team is not None:
        team.end()


def waited_s() -> dict[str, float]:
    """Return how long each thread of this process has waited for a core so far, by the number of the thread."""
    found = {}
    for thread in os.listdir(TASKS):
        try:
            found[thread] = int((TASKS / thread / "schedstat").read_bytes().split()[1]) / 1e9
        except OSError:
            # It has ended since.
            continue
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
