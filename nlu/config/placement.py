"""Which process of a run this is, by its environment: alone, one of ours, of torchrun's, of Slurm's, or of a PAI job.

    alone       nothing says otherwise
    workers     `nlu.launching.local` started it, one for each device of this node; RANK counts processes
    torchrun    RANK, WORLD_SIZE and LOCAL_RANK count processes, as torchrun sets them, or a script of one's own
    slurm       srun started several tasks; each is a process, or starts one for each device of its node
    nodes       RANK and WORLD_SIZE count nodes and there is no LOCAL_RANK: PAI-DLC, and Kubeflow's PyTorchJob. Ours is
                the only process that is started on each node; NPROC_PER_NODE says how many it is to start

Slurm's count of a job's tasks, SLURM_NTASKS, is no sign of several processes: a batch script has it too, and is one.
What counts is the step, which srun makes.
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
"""environment variable: where the processes that we started find each other, as torch.distributed takes it"""
LOWEST_PORT, PORTS = 20_000, 10_000
"""A job of Slurm's meets at a port that is made of its number."""
ASK_S = 30.0
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class Placement:
    """A process among all of the run's. A node's processes follow each other by rank."""

    kind: Literal["alone", "workers", "torchrun", "slurm", "nodes"] = "alone"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """among those of its node, of which the one with 0 is the leader: it fetches and builds for all of them"""
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1
    meeting: str | None = None
    """where all find each other, as torch.distributed takes it; None of a process that is alone"""
    asked: int | None = None
    """how many processes this one is asked to start on its node"""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def workers(self, devices: int) -> list["Placement"]:
        """Return the processes that this one is to start, one for each device of its node; none where it is one itself.

        Raises UserError where what started it counts otherwise. On one node they have no meeting yet.
        """
        if self.kind == "workers":
            return []
        if self.kind == "torchrun" or self.local_world_size > 1:
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
                "workers", self.node * count + local, self.nodes * count, local, count, self.node, self.nodes,
                self.meeting,
            )
            for local in range(count)
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return what tells a process that it is this one."""
        return {
            "RANK": str(self.rank), "WORLD_SIZE": str(self.world_size), "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size), "GROUP_RANK": str(self.node),
            "GROUP_WORLD_SIZE": str(self.nodes), MEETING: self.meeting or "",
        }  # fmt: skip


def placement(environment: Mapping[str, str] = os.environ) -> Placement:
    """Return what the environment says of this process. Raises UserError where it contradicts itself."""
    given = [name for name in _VARIABLES if environment.get(name)]
    if MEETING in environment:
        return replace(_counted(environment), kind="workers", meeting=environment[MEETING])
    by_slurm = _of_slurm(environment)
    if by_slurm is not None:
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
    """Return a process whose variables count processes, as torchrun's do."""
    rank, world_size, local_rank = (_number(environment, name) for name in _VARIABLES)
    local_world_size = _number(environment, "LOCAL_WORLD_SIZE", world_size)
    nodes = _number(environment, "GROUP_WORLD_SIZE", max(1, world_size // max(1, local_world_size)))
    node = _number(environment, "GROUP_RANK", rank // max(1, local_world_size))
    for name, value, above, limit in (
        ("RANK", rank, "WORLD_SIZE", world_size), ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size),
    ):  # fmt: skip
        if value >= limit:
            raise UserError(f"{name} is {value}, but {above} is {limit}; ranks count from 0 to below it")
    return Placement("torchrun", rank, world_size, local_rank, local_world_size, node, nodes)


def _of_nodes(environment: Mapping[str, str]) -> Placement:
    """Return a node's one process, where RANK and WORLD_SIZE count nodes."""
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
    """Return a task among several of a step; None of a step's only task, and of what is none."""
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if tasks == 1:
        return None
    rank, node = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NODEID", 0)
    nodes = _number(environment, "SLURM_STEP_NUM_NODES", 1)
    counts = _tasks_of_nodes(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), tasks, nodes)
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost"
    host = environment.get("MASTER_ADDR") or first_node(names)
    port = environment.get("MASTER_PORT") or LOWEST_PORT + _number(environment, "SLURM_JOB_ID") % PORTS
    return Placement(
        "slurm", rank, tasks, _number(environment, "SLURM_LOCALID"), counts[node], node, nodes, f"tcp://{host}:{port}"
    )


def _require_same(environment: Mapping[str, str], slurm: Placement, given: list[str]) -> None:
    theirs = {"RANK": slurm.rank, "WORLD_SIZE": slurm.world_size, "LOCAL_RANK": slurm.local_rank}
    if wrong := [name for name in given if _number(environment, name) != theirs[name]]:
        says = ", ".join(f"{name}={environment[name]}" for name in wrong)
        should = ", ".join(f"{name}={theirs[name]}" for name in wrong)
        raise UserError(f"{says} set, but as a task of Slurm's this is {should}; unset {', '.join(wrong)}")


def _tasks_of_nodes(text: str, tasks: int, nodes: int) -> list[int]:
    """Return the tasks of each node, from Slurm's way of writing them: `2(x3),1`."""
    counts = [int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
    return counts if len(counts) == nodes else [-(-tasks // nodes)] * nodes


def first_node(names: str) -> str:
    """Return the first of Slurm's list of nodes: `n1` of `n[1-2,7],x3`."""
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
    """Return a meeting whose host has an address here: of a node that has no entry in the DNS Slurm knows it.

    Raises UserError where nobody does.
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
    raise UserError(f"{host}, where the processes of this run meet, has no address here; set MASTER_ADDR to one")
