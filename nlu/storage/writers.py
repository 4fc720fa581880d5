"""Who writes to something that hosts share: what identifies a process, and whether a former one is known to be over."""

import os
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from nlu.storage.heartbeat import has_ended, identity_of

JOB_VARIABLE = "NLU_JOB"
"""the environment variable with the job of a launcher whose queue may start it again"""


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
