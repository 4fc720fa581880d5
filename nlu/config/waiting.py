"""How threads of the matrix library wait for one another; decided before the library loads.

A thread that spins answers at once but takes its core from others; one that sleeps needs some time to wake up. The
library (GNU OpenMP) reads both variables when it loads. `nlu.training.spinning` tells it afterwards when not to spin.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

POLICY, COUNT = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
SPINS = "30000"
"""how often a thread looks before it sleeps: a few tenths of a millisecond, longer than most gaps within a step"""
NEVER = "0"
DELAYS = Path("/proc/self/schedstat")
"""how long this thread has computed and has waited for a core, on Linux"""
FURTHER_THREADS_MAX = 8
"""how many threads, beside one for each core, may have to exist to stop spinning"""
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def let_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep, unless the user has chosen how they wait. Call it before torch is imported."""
    if not {POLICY, COUNT} & set(environment):
        # Spinning on two busy cores makes training with two threads two to ten times slower.
        environment.update({POLICY: "passive", COUNT: NEVER})


def let_threads_spin(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads spin before they sleep, where `let_threads_sleep` was called, here or in a parent.

    Call it before torch is imported, in a process that trains. They sleep if this process could not stop them when
    another program needs the cores: if it cannot see that, or if that would take many threads.
    """
    if environment.get(POLICY) == "passive" and environment.get(COUNT) in (NEVER, SPINS):
        environment[COUNT] = SPINS if _can_be_stopped(environment) else NEVER


def may_spin(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the threads of this process spin, as `let_threads_spin` has decided."""
    return environment.get(POLICY) == "passive" and environment.get(COUNT) == SPINS


def _can_be_stopped(environment: MutableMapping[str, str]) -> bool:
    try:
        # Kernels that do not count it write zeros.
        if int(DELAYS.read_text().split()[0]) == 0:
            return False
    except (OSError, ValueError, IndexError):
        return False
    # The processes of a run share the cores, and threads that are bound to cores see only some of them.
    processes = environment.get("LOCAL_WORLD_SIZE", environment.get("WORLD_SIZE", "1"))
    if processes != "1" or any(name in environment for name in _BINDING):
        return False
    cores = len(os.sched_getaffinity(0))
    threads = environment.get("OMP_NUM_THREADS", str(cores))
    return threads.isdecimal() and cores - int(threads) <= FURTHER_THREADS_MAX
