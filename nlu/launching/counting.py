"""The number of processes that `devices=auto` stands for.

A run records it: the bytes of sums depend on it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import torch
import yaml

from nlu.config.choices import node_of
from nlu.config.errors import UserError
from nlu.config.placement import placement
from nlu.config.schema import Run
from nlu.config.signature import read_constants
from nlu.config.targets import TARGET
from nlu.config.words import counted
from nlu.runs.folder import CONFIG
from nlu.runs.mirror import bring_back
from nlu.storage.bucket import Unreachable
from nlu.training.hardware import idle_cores

EXAMPLES_OF_A_PROCESS = 8
"""of a micro-batch, below which another process on a CPU makes a step no faster"""


def with_count(config: Run, run_dir: Path) -> Run:
    """Return the configuration with a number of processes if it is auto, else the same.

    On a CPU, several processes of a run share memory. A run of `run_dir` that is continued keeps the number and the
    strategy with which it was begun. Raises UserError if there are too few devices for that number.
    """
    trainer = config.trainer
    if trainer.devices != "auto":
        return config
    count, reason = count_of("auto", trainer.device), "the environment asks for it"
    if is_on_cpu := _decides() and (trainer.device == "cpu" or not torch.cuda.device_count()):
        count, reason = processes_on_cpu(config)
    elif _decides():
        reason = f"{counted(count, 'GPU')} can be seen"
    sharing = config.with_choice("parallel", node_of("parallel", "shared"), "shared")
    begun = None
    if config.mirror is not None and config.resume != "never" and not (run_dir / CONFIG).is_file() and _decides():
        # On another machine; a service that does not respond is reported when the run opens its mirror.
        with suppress(Unreachable):
            bring_back(config.mirror, run_dir)
    # Who starts the processes decides their number; another one is refused as another configuration.
    if config.resume != "never" and (run_dir / CONFIG).is_file() and _decides():
        begun = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
        there = begun["trainer"].get("devices")
        here, count = count, _as_begun(config, there, run_dir, count)
        if count != here:
            reason = f"the run was begun with it, and not with {here}"
    shares = count > 1 if begun is None else begun.get("parallel") == sharing.parallel
    if is_on_cpu and shares and config.parallel == node_of("parallel", "replicated"):
        config = sharing
    print(f"nlu: trainer.devices=auto is {count}: {reason}", file=sys.stderr)
    return config.with_devices(count)


def processes_on_cpu(config: Run) -> tuple[int, str]:
    """Return the number of processes that `auto` means on the CPUs of this machine, and the reason: one for each core,
    if each then has at least EXAMPLES_OF_A_PROCESS of a micro-batch.

    It is 1 if gradients would be sent, which is slower than threads, if the examples of a micro-batch are not known, or
    if a loss compares them with one another, so that the number of processes would change what is learned.
    """
    if config.parallel not in (node_of("parallel", "shared"), node_of("parallel", "replicated")):
        return 1, "with this choice of parallel, processes would send their gradients"
    if any(_compares(one) for one in (config, *(config.members or {}).values())):
        return 1, "the loss compares the examples of a process with one another"
    batch_size = config.trainer.batch_size
    if config.trainer.batch_tokens is not None or batch_size == "auto":
        return 1, "the number of examples of a micro-batch is not known before it is made"
    cores = idle_cores()
    count = max(1, min(cores, batch_size // EXAMPLES_OF_A_PROCESS))
    return count, (
        f"{counted(cores, 'core')} can be used, trainer.batch_size is {batch_size}, and a process should have "
        f"{EXAMPLES_OF_A_PROCESS} examples"
    )


def _compares(config: Run) -> bool:
    with suppress(UserError):
        return not read_constants(config.loss[TARGET]).get("by_row", True)
    # Nothing is known of a class of the user whose source cannot be read.
    return True


def _as_begun(config: Run, there: object, run_dir: Path, count: int) -> int:
    """Return the number of processes with which the run of a folder was begun; `count` is what `auto` means here."""
    if not isinstance(there, int) or there == count:
        return count
    # Any number of processes can run on a CPU.
    if count < there and config.trainer.device != "cpu" and (visible := torch.cuda.device_count()):
        raise UserError(
            f"trainer.devices is auto, but the run in {run_dir} was begun with {there} GPUs, and {visible} are visible "
            f"here; continue it where there are {there}, or start from its state with resume={run_dir} and another "
            "hydra.run.dir"
        )
    return there


def count_of(devices: int | Literal["auto"], device: str) -> int:
    """Return the number of processes on this machine.

    `auto` is the number that the environment has started or asks for, such as torchrun's; otherwise that of the visible
    CUDA devices, or 1 for runs on a CPU.
    """
    if devices != "auto":
        return devices
    place = placement()
    if place.kind == "torchrun" or place.local_world_size > 1 or place.asked is not None:
        return place.asked or place.local_world_size
    return max(1, torch.cuda.device_count()) if device != "cpu" else 1


def _decides() -> bool:
    """Return whether this command decides the number of processes, and not who started it."""
    place = placement()
    return place.kind != "torchrun" and place.local_world_size == 1 and place.nodes == 1 and place.asked is None


@contextmanager
def threads_for(count: int) -> Iterator[None]:
    """In the block, give each of several processes on a CPU its part of the threads that the environment allows."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if count == 1 or not given.isdecimal():
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, int(given) // count))
    try:
        yield
    finally:
        os.environ["OMP_NUM_THREADS"] = given
