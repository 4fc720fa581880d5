"""Who writes to something that hosts share: what identifies a process, and whether a former one is known to be over.

On the machine on which a process ran, this is certain. Clocks and silence are never asked: a suspended process is
silent and alive. Where nothing is known, a user says that a writer is gone (--take), and a fence on what was held keeps
one that wakes up from writing (docs/guarantees.md, "Fences").
"""

import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JOB_VARIABLE = "NLU_JOB"
"""the environment variable with the job of a launcher whose queue may start it again"""


def identity_of(pid: int) -> dict[str, Any]:
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


def own_writer() -> dict[str, Any]:
    """Return what identifies this process among all hosts: plain values, with an `id` that no other call returns."""
    own_id, job, start = uuid.uuid4().hex, os.environ.get(JOB_VARIABLE), uuid.uuid4().hex
    if job is None and (slurm := os.environ.get("SLURM_JOB_ID")):
        # Several processes of one job have the same count.
        job = f"slurm {os.environ.get('SLURM_CLUSTER_NAME', '')} {slurm}"
        start = os.environ.get("SLURM_RESTART_COUNT", "0")
    return {"id": own_id, "host": socket.gethostname(), "job": job, "start": start, **identity_of(os.getpid())}


def may_follow(own: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Return whether a writer is known to be over: it ended on this machine, or its queue has started it again."""
    is_restart = former.get("job") == own["job"] is not None and former.get("start") != own["start"]
    is_here = all(former.get(name) == own.get(name) for name in ("pid", "machine", "started"))
    return is_restart or is_here or has_ended(former)
