"""Which queues there are, and how one is opened: to hand jobs over, or only to look after those that it has."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.launching.queue import Job, Queue

FACTORIES = {
    "local": "nlu.launching.local_queue.LocalQueue",
    "pai": "nlu.launching.pai.queue.open_pai",
    "slurm": "nlu.launching.slurm.SlurmQueue",
}
"""by the name of a queue what is called with a `Place`"""


@dataclass(frozen=True)
class Place:
    """With what a queue is opened."""

    settings: Mapping[str, Any]
    """the keys of hydra.launcher, as plain containers"""
    folder: Path
    """the folder of the submission: that of a grid, a search, or the one run"""
    module: str = "nlu.train"
    """what the jobs run: python -m MODULE"""
    work: Callable[[Job], Any] | None = None
    """what a process of a job calls, which can be pickled; None where nothing is to be submitted"""
    compose: Callable[[Job], Mapping[str, Any]] | None = None
    """returns the configuration of a job, as plain containers"""
    config_dirs: tuple[str, ...] = ()
    """the folders that --config-dir named, absolute"""


def open_queue(name: str, place: Place) -> Queue:
    """Return the queue of this name. Raises UserError where there is none."""
    if name not in FACTORIES:
        raise UserError(f"{name} is no queue of this version; {hint(name, FACTORIES)}")
    module, _, factory = FACTORIES[name].rpartition(".")
    return getattr(importlib.import_module(module), factory)(place)
