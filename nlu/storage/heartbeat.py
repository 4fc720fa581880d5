"""Signs of life: how a process shows that it is alive, and how another process decides that it has died.

`identity_of` names a process among those of all machines and containers that share a folder or a bucket; on the same
machine, `has_ended` is certain. Across machines there is only a heartbeat. The holder of something (a mirror, a study,
a job) writes something new every `BEAT_S` seconds. A process that waits for it measures by its own monotonic clock for
how long that sign has not changed: clocks of hosts differ, so times written by another host are never compared. After
`SILENCE_S` seconds the holder counts as dead.

Silence is a guess: a suspended process is silent and alive. Silence only decides when another process may try to take
over. A fence on what was held keeps a holder that wakes up from writing (docs/guarantees.md, "Fences").
"""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypedDict

log = logging.getLogger(__name__)

BEAT_S = 15.0
SILENCE_S = 60.0
"""four beats, and longer than the longest pause between requests to an unreachable storage (`nlu.sweeps.patience`)"""
LOOK_S = 1.0
"""the longest pause between two readings of a process that waits for silence"""


class Identity(TypedDict, total=False):
    """What identifies a process; see `identity_of`."""

    pid: int
    machine: str
    started: str


def identity_of(pid: int) -> Identity:
    """Return what identifies a process of this machine; only its number if /proc is unavailable.

    `machine` identifies one boot of one machine and one container on it: `BOOT NAMESPACE`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        # Field 22, the ticks from boot to start, counted from the end of the name, which may contain spaces.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return {"pid": pid}
    return {"pid": pid, "machine": f"{boot} {namespace}", "started": started}


def has_ended(holder: Mapping[str, object]) -> bool:
    """Return whether a process is known to have ended: it ran on this machine and does not run any more."""
    here, pid = identity_of(os.getpid()), holder.get("pid")
    if "machine" not in holder or holder["machine"] != here.get("machine") or not isinstance(pid, int):
        return False
    there = identity_of(pid)
    # The number of a process that ended may belong to another one by now.
    if "started" in there:
        return there["started"] != holder.get("started")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # A process of another user, which /proc hides (hidepid).
        pass
    return False


def elapsed_s() -> float:
    """Return seconds of a clock that also runs while this process is stopped or its machine is suspended.

    A holder uses it to decide whether what it knew a moment ago may have changed since.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Heartbeat:
    """Call `beat` at once and then every `interval_s` seconds, in its own thread, until it is stopped.

    `beat` is given a number that increases and returns whether to continue. Errors of the classes `away` are ignored,
    since the next call may succeed.
    """

    def __init__(
        self,
        beat: Callable[[int], bool],
        *,
        name: str,
        interval_s: float = BEAT_S,
        away: tuple[type[Exception], ...] = (OSError,),
    ):
        self._call, self._interval_s, self._away = beat, interval_s, away
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """Stop; with `wait`, a beat that has begun is over when this returns. May be called several times."""
        self._stopped.set()
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        for count in itertools.count():
            try:
                if not self._call(count):
                    return
            except self._away as error:
                log.debug("%s: %s", self._thread.name, error)
            # Wait instead of sleep, so that `stop` takes effect at once.
            if self._stopped.wait(self._interval_s):
                return


class Watch:
    """Measures for how long a sign of life has not changed, by the clock of this process.

    Two readings of the same sign prove that no beat came between them, even if this process was suspended in
    between. The time counts from the end of the first reading to the beginning of the last one.
    """

    def __init__(self, read: Callable[[], Hashable]):
        self._read = read
        self.sign = read()
        self._since_s = time.monotonic()

    def still_s(self) -> float:
        """Read the sign; returns for how many seconds it has not changed, 0 if it has just changed."""
        asked_s = time.monotonic()
        if (sign := self._read()) != self.sign:
            self.sign, self._since_s = sign, time.monotonic()
            return 0.0
        return asked_s - self._since_s


def falls_silent(read: Callable[[], Hashable], silence_s: float = SILENCE_S) -> bool:
    """Wait until a sign has not changed for `silence_s` seconds and return True, or False as soon as it changes."""
    watch = Watch(read)
    first = watch.sign
    while True:
        time.sleep(min(LOOK_S, silence_s / 10))
        still_s = watch.still_s()
        if watch.sign != first:
            return False
        if still_s >= silence_s:
            return True
