"""How threads of the matrix library wait for one another; decided before the library loads.

A thread that spins answers at once but takes its core from others; one that sleeps needs some time to wake up. The
library (GNU OpenMP) reads both variables when it loads. `nlu.training.spinning` tells it afterwards when not to spin.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

POLICY, COUNT = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
SPINS = 30_000
"""how often a thread looks before it sleeps: a few tenths of a millisecond, longer than most gaps within a step"""
DELAYS = Path("/proc/self/schedstat")
"""where Linux tells how long a thread has waited for a core"""


def let_threads_wait(may_spin: bool, environment: MutableMapping[str, str] = os.environ) -> None:
    """Choose how threads wait, unless the user has: they sleep, or they spin first if `may_spin`.

    Call it before torch is imported. They spin only where this process can see whether cores are idle.
    """
    if {POLICY, COUNT} & set(environment):
        return
    # Spinning on two busy cores makes training with two threads two to ten times slower. With this policy, threads of
    # a process that has more of them than cores do not spin at all, whatever the count is.
    environment[POLICY] = "passive"
    if may_spin and DELAYS.is_file():
        environment[COUNT] = str(SPINS)


def may_spin(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether `let_threads_wait` lets the threads of this process spin; it may have done so in its parent."""
    return environment.get(POLICY) == "passive" and environment.get(COUNT) == str(SPINS)
