"""The place of this process among those of a run, read from its environment variables.

    alone       a single process
    workers     started by `nlu.training.processes`, one for each device of this node; RANK counts processes
    torchrun    RANK, WORLD_SIZE and LOCAL_RANK count processes, as set by torchrun or by your own script
    slurm       srun started several tasks; each is a process, or starts one for each device of its node
    nodes       RANK and WORLD_SIZE count nodes, without LOCAL_RANK: PAI-DLC, and Kubeflow's PyTorchJob. They start one
                process on each node, and NPROC_PER_NODE is the number of processes that it should start

For Slurm the variables of the step count, which srun creates. SLURM_NTASKS does not: a batch script, which is a single
process, has it too.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from nlu.config.errors import UserError

MEETING = "NLU_WORKERS_MEET_AT"
"""Environment variable: the address at which our workers meet, in the form of torch.distributed."""
LOWEST_PORT, PORTS = 20_000, 10_000
"""Range of the port at which a Slurm job meets; the job's number determines it."""
ASK_S = 30.0
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class Placement:
    """The place of a process in a run. The processes of a node have consecutive ranks."""

    kind: Literal["alone", "workers", "torchrun", "slurm", "nodes"] = "alone"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """rank on its node; 0 is the leader, which fetches and builds for the node"""
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1
    meeting: str | None = None
    """address at which all meet, in the form of torch.distributed; None for a single process"""
    asked: int | None = None
    """number of processes that this one should start on its node"""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def workers(self, devices: int) -> list["Placement"]:
        """Return the processes that this one should start, one for each device of its node; [] if it is one itself.

        Raises UserError if its environment demands another number. On a single node the meeting is chosen later.
        """
        if self.kind == "workers":
            return []
        if self.kind == "torchrun" or self.local_world_size > 1:
            # 1 is the default of the key, so it contradicts nothing.
            if devices not in (1, self.local_world_size):
                raise UserError(
                    f"{self.kind} started {self.local_world_size} processes on this node, but devices is {devices}; "
                    "leave devices out, or have one process started on each node"
                )
            return []
        if self.asked is not None and devices not in (1, self.asked):
            raise UserError(f"NPROC_PER_NODE is {self.asked}, but devices is {devices}; leave one of them out")
        count = max(devices, self.asked or 1)
        if count == 1:
            return []
        return [
            Placement(
                "workers",
                self.node * count + local,
                self.nodes * count,
                local,
                count,
                self.node,
                self.nodes,
                self.meeting,
            )
            for local in range(count)
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a process in this place."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes),
            MEETING: self.meeting or "",
        }


def placement(environment: Mapping[str, str] = os.environ) -> Placement:
    """Return the place of this process. Raises UserError if the environment contradicts itself."""
    given = [name for name in _VARIABLES if environment.get(name)]
    # First, since our workers inherit the variables of the queue that started their parent.
    if MEETING in environment:
        return replace(_counted(environment), kind="workers", meeting=environment[MEETING])
    by_slurm = _of_slurm(environment)
    if by_slurm is not None:
        # With it, torchrun runs within the step, and its own variables count.
        if "TORCHELASTIC_RUN_ID" not in environment:
            _require_same(environment, by_slurm, given)
            return by_slurm
    if not given:
        return Placement()
    if given == ["RANK", "WORLD_SIZE"]:
        return _of_nodes(environment)
    if len(given) < len(_VARIABLES):
        missing = ", ".join(name for name in _VARIABLES if name not in given)
        raise UserError(f"{' and '.join(given)} set, but not {missing}; unset all of them, or start it by torchrun")
    return replace(_counted(environment), kind="torchrun", meeting="env://")


def _counted(environment: Mapping[str, str]) -> Placement:
    """Return the place of a process whose variables count processes, like those of torchrun."""
    rank, world_size, local_rank = (_number(environment, name) for name in _VARIABLES)
    local_world_size = _number(environment, "LOCAL_WORLD_SIZE", world_size)
    nodes = _number(environment, "GROUP_WORLD_SIZE", max(1, world_size // max(1, local_world_size)))
    node = _number(environment, "GROUP_RANK", rank // max(1, local_world_size))
    for name, value, above, limit in (
        ("RANK", rank, "WORLD_SIZE", world_size),
        ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size),
    ):
        if value >= limit:
            raise UserError(f"{name} is {value}, but {above} is {limit}; ranks count from 0 to below it")
    return Placement("torchrun", rank, world_size, local_rank, local_world_size, node, nodes)


def _of_nodes(environment: Mapping[str, str]) -> Placement:
    """Return the place of a node's only process if RANK and WORLD_SIZE count nodes."""
    node, nodes = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    asked = _number(environment, "NPROC_PER_NODE", 1)
    if node >= nodes:
        raise UserError(f"RANK is {node}, but WORLD_SIZE is {nodes}; without LOCAL_RANK they count nodes, from 0")
    if nodes > 1 and not (environment.get("MASTER_ADDR") and environment.get("MASTER_PORT")):
        raise UserError(
            f"RANK and WORLD_SIZE say that this is node {node} of {nodes}, but MASTER_ADDR and MASTER_PORT do not say "
            "where they meet; set both"
        )
    meeting = f"tcp://{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}" if nodes > 1 else None
    return Placement("nodes", node, nodes, 0, 1, node, nodes, meeting, asked if asked > 1 else None)


def _of_slurm(environment: Mapping[str, str]) -> Placement | None:
    """Return the place of a task in a Slurm step with several tasks; None otherwise."""
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if tasks == 1:
        return None
    rank, node = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NODEID", 0)
    nodes = _number(environment, "SLURM_STEP_NUM_NODES", 1)
    counts = _tasks_of_nodes(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), tasks, nodes)
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost"
    host = environment.get("MASTER_ADDR") or first_node(names)
    # All tasks must compute the same port without talking to each other, and two jobs on a node should differ.
    port = environment.get("MASTER_PORT") or LOWEST_PORT + _number(environment, "SLURM_JOB_ID") % PORTS
    return Placement(
        "slurm", rank, tasks, _number(environment, "SLURM_LOCALID"), counts[node], node, nodes, f"tcp://{host}:{port}"
    )


def _require_same(environment: Mapping[str, str], slurm: Placement, given: list[str]) -> None:
    theirs = {"RANK": slurm.rank, "WORLD_SIZE": slurm.world_size, "LOCAL_RANK": slurm.local_rank}
    if wrong := [name for name in given if _number(environment, name) != theirs[name]]:
        says = ", ".join(f"{name}={environment[name]}" for name in wrong)
        should = ", ".join(f"{name}={theirs[name]}" for name in wrong)
        raise UserError(f"{says} set, but as a task of Slurm this is {should}; unset {', '.join(wrong)}")


def _tasks_of_nodes(text: str, tasks: int, nodes: int) -> list[int]:
    """Return the number of tasks of each node, which Slurm writes as `2(x3),1`."""
    counts = [int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
    return counts if len(counts) == nodes else [-(-tasks // nodes)] * nodes


def first_node(names: str) -> str:
    """Return the first node of Slurm's list: `n1` for `n[1-2,7],x3`."""
    head = re.match(r"(?:[^,\[]|\[[^\]]*\])+", names)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", head[0] if head else names)


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environment.get(name)
    if not value and default is not None:
        return default
    if value is None or not value.isdecimal():
        raise UserError(f"{name} is {value!r}, but must be a whole number, since this is one of several processes")
    return int(value)


def reachable(meeting: str) -> str:
    """Return the meeting with a host that resolves here. Slurm knows the addresses of nodes without a DNS entry.

    Raises UserError if no address is found.
    """
    if not meeting.startswith("tcp://"):
        return meeting
    address = urlsplit(meeting)
    host = str(address.hostname)
    try:
        socket.getaddrinfo(host, address.port)
        return meeting
    except OSError:
        pass
    import subprocess

    try:
        command = ["scontrol", "--oneliner", "show", "node", host]
        said = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if found := re.search(r"\bNodeAddr=(\S+)", said):
        return f"tcp://{found[1]}:{address.port}"
    raise UserError(
        f"{host}, where the processes of this run meet, cannot be resolved here; set MASTER_ADDR to an address"
    )
