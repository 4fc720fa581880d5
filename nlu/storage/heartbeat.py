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
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def identity_of(pid: int) -> dict[str, Any]:
    """Return what names a process of this machine; nothing but its number where /proc tells no more.

    `machine` is that of one start of one machine, and of one container there: `BOOT NAMESPACE`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        # The 22nd field, counted behind the name, which may hold blanks: ticks from boot to start.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return {"pid": pid}
    return {"pid": pid, "machine": f"{boot} {namespace}", "started": started}


def has_ended(holder: Mapping[str, Any]) -> bool:
    """Whether a process is known to have ended: it was one of this machine, and there is none such any more."""
    here, pid = identity_of(os.getpid()), holder.get("pid")
    if "machine" not in holder or holder["machine"] != here.get("machine") or not isinstance(pid, int):
        return False
    there = identity_of(pid)
    return there["started"] != holder.get("started") if "started" in there else not _is_any(pid)


def _is_any(pid: int) -> bool:
    """Whether a process has this number, also one of another user that /proc hides (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


log = logging.getLogger(__name__)

BEAT_S = 15.0
SILENCE_S = 60.0
"""four beats, and more than the longest pause in which a storage that is away is not asked (`nlu.sweeps.patience`)"""
FILE_SILENCE_S = SILENCE_S + 60.0
"""the same for a file on a shared file system: NFS may show for a minute what was there (acregmax)"""
LOOK_S = 1.0
"""the longest pause between two looks of a process that waits for silence"""


def elapsed_s() -> float:
    """Return seconds that also pass while this process is stopped or its machine is suspended.

    A holder asks by this clock whether what it knew a moment ago may have changed since.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Heartbeat:
    """Calls `beat` at once and then every `interval_s` seconds, in a thread of its own, until it is stopped.

    `beat` gets a number that grows, and returns whether to continue. An error in `away` ends nothing: the next call may
    succeed.
    """

    def __init__(
        self, beat: Callable[[int], bool], *, name: str, interval_s: float = BEAT_S,
        away: tuple[type[Exception], ...] = (OSError,),
    ):  # fmt: skip
        self._call, self._interval_s, self._away = beat, interval_s, away
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """Beat no more; with `wait` a beat that has begun is over when this returns. May be called again."""
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
            if self._stopped.wait(self._interval_s):
                return


class Watch:
    """For how long a sign of life has stood still, by the clock of this process.

    Two looks that read the same sign prove that there was no beat between them, also where this process was suspended
    between the two. Time is counted from the end of the first look to the beginning of the last one.
    """

    def __init__(self, read: Callable[[], Hashable]):
        self._read = read
        self.sign = read()
        self._since_s = time.monotonic()

    def still_s(self) -> float:
        """Look again; returns for how many seconds the sign has been what it is, 0 where it has just changed."""
        asked_s = time.monotonic()
        if (sign := self._read()) != self.sign:
            self.sign, self._since_s = sign, time.monotonic()
            return 0.0
        return asked_s - self._since_s


def falls_silent(read: Callable[[], Any], silence_s: float = SILENCE_S) -> bool:
    """Wait until a sign has stood still for so long; returns False as soon as it changes."""
    watch = Watch(read)
    first = watch.sign
    while True:
        time.sleep(min(LOOK_S, silence_s / 10))
        still_s = watch.still_s()
        if watch.sign != first:
            return False
        if still_s >= silence_s:
            return True


class Marks:
    """Watches that several commands share, of which each may look only once: each would begin to count at 0.

    What a command has seen stands in a file, the mark, whose age is told by the clock of its disk. Where it cannot be
    written, this process counts for itself.
    """

    def __init__(self, again_s: float = 60.0) -> None:
        self._again_s = again_s
        """how often a mark is removed that another command may have made meanwhile"""
        self._ended_s: dict[Path, float] = {}
        self._watches: dict[Path, tuple[Watch, float]] = {}
        """of each mark: the watch, and for how long its sign had been there when this process looked first"""

    def still_s(self, mark: Path, read: Callable[[], str] = str) -> float:
        """Return for how many seconds a sign has stood still. Raises what `read` raises.

        Without `read` the sign is always the same: the seconds since somebody asked first.
        """
        if mark not in self._watches:
            self._ended_s.pop(mark, None)
            watch, before_s = Watch(read), 0.0
            with suppress(OSError):
                before_s = _age_s(mark, str(watch.sign))
            self._watches[mark] = watch, before_s
        watch, before_s = self._watches[mark]
        sign, still_s = watch.sign, watch.still_s()
        if watch.sign != sign:
            self._watches[mark] = watch, (before_s := 0.0)
        return before_s + still_s

    def end(self, mark: Path) -> None:
        """Begin at 0 the next time, whichever command asks.

        Whoever follows jobs calls this for each of them whenever it looks, so most calls touch no disk.
        """
        self._watches.pop(mark, None)
        now_s = time.monotonic()
        if now_s - self._ended_s.get(mark, -math.inf) < self._again_s:
            return
        self._ended_s[mark] = now_s
        with suppress(OSError):
            mark.unlink()


def _age_s(mark: Path, sign: str) -> float:
    """Return for how many seconds a mark has held this sign, 0 where it is written only now. Raises OSError."""
    if not mark.is_file() or mark.read_text() != sign:
        mark.write_text(sign)
    with tempfile.NamedTemporaryFile(dir=mark.parent, prefix=f".{mark.name}.") as now:
        return os.stat(now.name).st_mtime - mark.stat().st_mtime
