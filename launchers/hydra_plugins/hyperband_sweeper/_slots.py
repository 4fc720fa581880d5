"""Starting jobs: one at a time in this process, or each in a thread that waits for a launcher of its own."""

import logging
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

SEVERAL_AT_ONCE = ("hydra_plugins.hydra_submitit_launcher.", "hydra_plugins.pai_launcher.")
"""Launchers that were read and found to take launches from several threads."""
LOCAL = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


@dataclass(frozen=True)
class Ended:
    """A launch that returned."""

    number: int
    attempt: int
    result: JobReturn | None
    error: BaseException | None

    @property
    def failure(self) -> BaseException | None:
        """What was raised in the job, or by the launcher."""
        if self.error is not None:
            return self.error
        failed = self.result is not None and self.result.status == JobStatus.FAILED
        return self.result._return_value if failed else None  # type: ignore[union-attr]

    @property
    def value(self) -> Any:
        return self.result._return_value if self.result is not None and self.failure is None else None


class Slots:
    """Places for jobs. `launch` returns at once where jobs run elsewhere, and after the job where they run here."""

    def __init__(self, config: DictConfig, context: HydraContext, task: TaskFunction, wanted: int):
        self._config, self._context, self._task = config, context, task
        self.target = str(config.hydra.launcher._target_)
        takes_several = self.target.startswith(SEVERAL_AT_ONCE)
        self.is_threaded = takes_several
        self.count = wanted if takes_several else 1
        self.ended: queue.Queue[Ended] = queue.Queue()
        self._devices: dict[int, int] = {}

    @property
    def is_local(self) -> bool:
        return self.target == LOCAL

    def sentence(self, wanted: int) -> str | None:
        """Return what to say where fewer trials run at once than were asked for."""
        if self.count == wanted:
            return None
        name = self.target.rpartition(".")[2]
        why = "runs jobs in this process" if self.target == BASIC else "is not known to take several launches at once"
        return (
            f"hydra.sweeper.n_jobs is {wanted}, but {name} {why}, so trials run one at a time; "
            "hydra/launcher=submitit_local runs them side by side"
        )

    def launch(self, number: int, attempt: int, overrides: Sequence[str]) -> None:
        """Start a job under its trial's number; its end comes through `ended`."""
        own = [*overrides, *self._share_of_machine(number)]
        if not self.is_threaded:
            self.ended.put(self._launched(number, attempt, own))
            return
        work = threading.Thread(
            target=lambda: self.ended.put(self._launched(number, attempt, own)), name=f"trial-{number}", daemon=True
        )
        work.start()

    def freed(self, number: int) -> None:
        """Take back what a job had of the machine."""
        self._devices.pop(number, None)

    def _launched(self, number: int, attempt: int, overrides: Sequence[str]) -> Ended:
        try:
            results = self._launcher(number, attempt).launch([list(overrides)], initial_job_idx=number)
            return Ended(number, attempt, results[0], None)
        except Exception as error:
            return Ended(number, attempt, None, error)

    def _launcher(self, number: int, attempt: int) -> Launcher:
        config = self._config
        if "submitit_folder" in config.hydra.launcher:
            # A folder for each launch: process numbers come again, and a stale result would be taken for this one's.
            config = config.copy()
            folder = f"{config.hydra.sweep.dir}/.submitit/{number}-{attempt}/%j"
            OmegaConf.update(config, "hydra.launcher.submitit_folder", folder, force_add=True)
        return Plugins.instance().instantiate_launcher(
            config=config, hydra_context=self._context, task_function=self._task
        )

    def _share_of_machine(self, number: int) -> list[str]:
        """Return overrides that give a job on this machine a GPU of its own or its part of the cores."""
        if not self.is_local:
            return []
        shares = {}
        if "OMP_NUM_THREADS" not in os.environ:
            shares["OMP_NUM_THREADS"] = str(max(1, available_cores() // self.count))
        if devices := visible_gpus():
            used = list(self._devices.values())
            place = min(range(len(devices)), key=lambda index: (used.count(index), index))
            self._devices[number] = place
            shares["CUDA_VISIBLE_DEVICES"] = devices[place]
        return [f"+hydra.job.env_set.{name}='{value}'" for name, value in shares.items()]


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA would see, without importing torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    try:
        return sorted((name for name in os.listdir("/proc/driver/nvidia/gpus")), key=str) and [
            str(index) for index in range(len(os.listdir("/proc/driver/nvidia/gpus")))
        ]
    except FileNotFoundError:
        return []


def quiet_launchers() -> None:
    """Keep the launchers' own line about each job out of the console; the sweep has one of its own."""
    for name in (BASIC.rpartition(".")[0], LOCAL.rpartition(".")[0]):
        logging.getLogger(name).setLevel(logging.WARNING)
