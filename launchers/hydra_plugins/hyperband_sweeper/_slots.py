"""Starting jobs: one at a time in this process, or each in a thread that waits for a launcher of its own."""

import contextlib
import copy
import itertools
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from nlu.config.submitted import refusal_of, was_lost
from nlu.runs.provenance import usable_cores
from nlu.sweeps.channel import last_line

SEVERAL_AT_ONCE = ("hydra_plugins.hydra_submitit_launcher.", "hydra_plugins.pai_launcher.")
"""Launchers that were read and found to take launches from several threads."""
LOCAL = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"
TIMEOUT = "hydra.launcher.timeout_min"
NO_TIMEOUT_MIN = 60 * 24 * 60
"""What a local job has where nobody set the key: submitit's own default is an hour, which a trial may well take."""
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


@dataclass(frozen=True)
class Ended:
    """A launch that returned."""

    number: int
    launch: int
    """which launch of this trial it was"""
    result: JobReturn | None
    error: BaseException | None

    @property
    def never_began(self) -> bool:
        """Whether the launcher did not even start the job; submitit has its own errors for jobs that died."""
        return self.error is not None and not was_lost(self.error)

    @property
    def refusal(self) -> str | None:
        """What the command that hands jobs over said when it refused this one."""
        return refusal_of(self.error)

    @property
    def failure(self) -> BaseException | None:
        """What was raised in the job, or by the launcher."""
        if self.error is not None or self.result is None or self.result.status != JobStatus.FAILED:
            return self.error
        try:
            # Of a job that failed this raises what the job raised.
            return RuntimeError(f"it returned {self.result.return_value!r}")
        except BaseException as error:
            return error

    @property
    def value(self) -> Any:
        return self.result.return_value if self.result is not None and self.failure is None else None

    @property
    def reason(self) -> str:
        """In a few words, why it ended without an outcome."""
        return last_line(self.failure) if self.failure is not None else f"it returned {self.value!r}"


class Slots:
    """Places for jobs. `launch` returns at once where jobs run elsewhere, and after the job where they run here."""

    def __init__(self, config: DictConfig, context: HydraContext, task: TaskFunction, wanted: int):
        # OmegaConf takes nodes out of their tree while it copies them: no other thread may read this copy meanwhile.
        self._config, self._context, self._task = config.copy(), context, task
        self.target = str(config.hydra.launcher._target_)
        takes_several = self.target.startswith(SEVERAL_AT_ONCE)
        self.is_threaded = takes_several
        self.count = wanted if takes_several else 1
        self._ended: queue.Queue[Ended] = queue.Queue()
        self._jobs = f"{config.hydra.sweep.dir}/.submitit/{time.strftime('%Y%m%d-%H%M%S')}"
        self._launches = itertools.count()
        self._devices: dict[int, int] = {}
        self._is_timed = self.is_local and _is_timed(config, context)

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

    def next_ended(self, wait_s: float = 0.0) -> Ended | None:
        """Take the next launch that has returned; None where none does within `wait_s` seconds."""
        try:
            return self._ended.get(timeout=wait_s)
        except queue.Empty:
            return None

    def wait(self, wait_s: float) -> None:
        """Return once a launch has returned, which is left for `next_ended`, or after `wait_s` seconds."""
        if (ended := self.next_ended(wait_s)) is not None:
            self._ended.put(ended)

    def launch(self, number: int, launch: int, overrides: Sequence[str]) -> None:
        """Start a job under its trial's number; its end comes through `next_ended`."""
        own = [*overrides, *self._share_of_machine(number)]
        try:
            launcher = self._launcher(number, launch)
        except Exception as error:
            self._ended.put(Ended(number, launch, None, error))
            return
        if not self.is_threaded:
            self._ended.put(self._launched(launcher, number, launch, own))
            return
        work = threading.Thread(
            target=self._launch_apart, args=(launcher, number, launch, own), name=f"trial-{number}", daemon=True
        )
        work.start()

    def _launch_apart(self, launcher: Launcher, number: int, launch: int, overrides: Sequence[str]) -> None:
        # Ctrl-C is for the search, which then ends its jobs in order; what is started here inherits the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._ended.put(self._launched(launcher, number, launch, overrides))

    def freed(self, number: int) -> None:
        """Take back what a job had of the machine."""
        self._devices.pop(number, None)

    @staticmethod
    def _launched(launcher: Launcher, number: int, launch: int, overrides: Sequence[str]) -> Ended:
        try:
            results = launcher.launch([list(overrides)], initial_job_idx=number)
            return Ended(number, launch, results[0], None)
        except Exception as error:
            return Ended(number, launch, None, error)

    def _launcher(self, number: int, launch: int) -> Launcher:
        config, context, task = self._config.copy(), self._context, self._task
        if not self.is_local:
            return Plugins.instance().instantiate_launcher(config=config, hydra_context=context, task_function=task)
        own = self._config.copy()
        with read_write(own.hydra), open_dict(own.hydra):
            # Of each launch its own: process numbers come again, and a stale result would be taken for this one's.
            own.hydra.launcher.submitit_folder = f"{self._jobs}/{number}-{launch}-{next(self._launches)}/%j"
            if not self._is_timed:
                own.hydra.launcher.timeout_min = NO_TIMEOUT_MIN
        launcher = Plugins.instance().instantiate_launcher(config=own, hydra_context=context, task_function=task)
        # Hydra refuses a job whose own launcher is not that of the search.
        launcher.setup(hydra_context=context, task_function=task, config=config)
        return launcher

    def _share_of_machine(self, number: int) -> list[str]:
        """Return overrides that give a job on this machine a GPU of its own or its part of the cores."""
        if not self.is_local:
            return []
        shares = {}
        if "OMP_NUM_THREADS" not in os.environ:
            shares["OMP_NUM_THREADS"] = str(max(1, usable_cores() // self.count))
        if devices := visible_gpus():
            used = list(self._devices.values())
            place = min(range(len(devices)), key=lambda index: (used.count(index), index))
            self._devices[number] = place
            shares["CUDA_VISIBLE_DEVICES"] = devices[place]
        return [f"+hydra.job.env_set.{name}='{value}'" for name, value in shares.items()]


def _is_timed(config: DictConfig, context: HydraContext) -> bool:
    """Return whether somebody set how long a job may take, on the command line or in a file.

    Another default, composed in submitit's place, shows it: what is set stands against either.
    """
    given = [*config.hydra.overrides.hydra, *config.hydra.overrides.task]
    if any(override.lstrip("+").startswith(f"{TIMEOUT}=") for override in given):
        return True
    store, group, name = ConfigStore.instance(), "hydra/launcher", "submitit_local"
    default = store.load(f"{group}/{name}.yaml")
    other = copy.deepcopy(default.node)
    other.timeout_min = default.node.timeout_min + 1
    try:
        store.store(
            group=group, name=name, node=other, package=default.package, provider=default.provider, replace=True
        )
        composed = context.config_loader.load_configuration(
            config_name=config.hydra.job.config_name, overrides=given, run_mode=RunMode.MULTIRUN
        )
    finally:
        store.store(
            group=group, name=name, node=default.node, package=default.package, provider=default.provider, replace=True
        )
    return composed.hydra.launcher.timeout_min != other.timeout_min


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA would see, without importing torch."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def quiet_launchers() -> None:
    """Keep the launchers' own line about each job out of the console; the sweep has one of its own."""
    for name in (BASIC.rpartition(".")[0], LOCAL.rpartition(".")[0]):
        logging.getLogger(name).setLevel(logging.WARNING)


def terminate_jobs() -> None:
    """Send SIGTERM to the processes that submitit's local launcher started from here, which pass it on."""
    children = Path(f"/proc/{os.getpid()}/task")
    for listing in children.glob("*/children"):
        found: list[str] = []
        # A thread may end meanwhile, and its file goes with it.
        with contextlib.suppress(OSError):
            found = listing.read_text().split()
        for child in found:
            with contextlib.suppress(OSError):
                if b"submitit" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGTERM)
