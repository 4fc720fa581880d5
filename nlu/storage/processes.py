"""What names a process among those of all machines and containers that share a folder or a store."""

import os
from collections.abc import Mapping
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
