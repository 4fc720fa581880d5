"""Starting jobs: one at a time in this process, each in a thread that waits for a launcher of its own, or in batches
of a launcher that takes one launch at a time."""

import contextlib
import contextvars
import logging
import os
import queue
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.queue_launcher.queue_launcher import QueueLauncher
from omegaconf import DictConfig, open_dict, read_write

from nlu.config import stopping
from nlu.config.submitted import raised_in, refusal_of, was_lost
from nlu.launching.queue import JobRefused
from nlu.runs.provenance import usable_cores
from nlu.sweeps.channel import last_line

from ._gpus import Gpus, Need, visible_gpus

SUBMITIT = "hydra_plugins.hydra_submitit_launcher."
"""Launchers of another package whose code allows launches from several threads."""
LOCAL = "hydra_plugins.queue_launcher.queue_launcher.LocalLauncher"
REMEDY = "; correct what hydra.launcher sets"
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
        """What the queue, or the command that hands jobs over, said when it refused this one."""
        if isinstance(self.error, JobRefused):
            return last_line(self.error).removesuffix(REMEDY)
        said = refusal_of(self.error)
        return None if said is None else f"its job was refused: {said}"

    @property
    def failure(self) -> BaseException | None:
        """What was raised in the job, or by the launcher."""
        if self.error is not None or self.result is None or self.result.status != JobStatus.FAILED:
            return self.error
        raised = raised_in(self.result)
        return raised if isinstance(raised, BaseException) else RuntimeError(f"it returned {raised!r}")

    @property
    def value(self) -> Any:
        return self.result.return_value if self.result is not None and self.failure is None else None

    @property
    def reason(self) -> str:
        """In a few words, why it ended without an outcome."""
        return last_line(self.failure) if self.failure is not None else f"it returned {self.value!r}"


class Slots:
    """Places for jobs. `launch` returns at once where jobs run elsewhere, and after the job where they run here.

    A launcher that takes one launch at a time is handed those that were launched since the last `hand_over` by that,
    which returns when all of them have ended. On this machine no two jobs have a GPU in common: there are fewer places
    where the GPUs do not suffice for `wanted` trials that take at least `least_gpus` each.
    """

    def __init__(
        self, config: DictConfig, context: HydraContext, task: TaskFunction, wanted: int, least_gpus: int = 1
    ):  # fmt: skip
        # OmegaConf takes nodes out of their tree while it copies them: no other thread may read this copy meanwhile.
        self._config, self._context, self._task = config.copy(), context, task
        self.target = str(config.hydra.launcher._target_)
        self.is_threaded = self.target.startswith(SUBMITIT) or self.target in queue_launchers()
        self.is_batched = not self.is_threaded and self.target != BASIC and wanted > 1
        self.gpus = Gpus(visible_gpus() if self.is_local else [])
        self._least_gpus = least_gpus
        self.count = self.gpus.at_once(least_gpus, wanted) if self.is_threaded or self.is_batched else 1
        self._batch: list[tuple[int, int, list[str]]] = []
        self._ended: queue.Queue[Ended] = queue.Queue()
        self._is_timed = self.is_local and config.hydra.launcher.timeout_min is not None

    @property
    def is_local(self) -> bool:
        return self.target == LOCAL

    def sentence(self, wanted: int) -> str | None:
        """Return what to say where trials run otherwise than each in its slot, as many as were asked for."""
        name = self.target.rpartition(".")[2]
        if self.is_batched:
            return (
                f"{name} takes one launch at a time, so trials run in batches of {self.count}, with consecutive "
                "numbers; a free slot waits for its batch; hydra/launcher=submitit_local fills each at once"
            )
        if self.count == wanted:
            return None
        if self.is_threaded:
            each = "a GPU each" if self._least_gpus == 1 else f"at least {self._least_gpus} GPUs each"
            return (
                f"hydra.sweeper.n_jobs is {wanted}, but trials take {each}, of which there are {len(self.gpus)}, so "
                f"{self.count} run at a time; a GPU that CUDA_VISIBLE_DEVICES names twice is shared by two trials"
            )
        return (
            f"hydra.sweeper.n_jobs is {wanted}, but {name} runs jobs in this process, so trials run one at a time; "
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

    def launch(self, number: int, launch: int, overrides: Sequence[str], need: Need = Need()) -> None:  # noqa: B008
        """Start a job under its trial's number, for which GPUs must be free; its end comes through `next_ended`."""
        own = [*overrides, *self._share_of_machine(number, need)]
        if self.is_batched:
            self._batch.append((number, launch, own))
            return
        try:
            launcher = self._launcher()
        except Exception as error:
            self._ended.put(Ended(number, launch, None, error))
            return
        if not self.is_threaded:
            # A run in this process minds signals itself, and is broken off where it does not.
            with stopping.at_once():
                self._ended.put(self._launched(launcher, number, launch, own))
            return
        # The context says which search this is (nlu.launching.waiting).
        work = partial(contextvars.copy_context().run, self._launch_apart, launcher, number, launch, own)
        threading.Thread(target=work, name=f"trial-{number}", daemon=True).start()

    def hand_over(self) -> None:
        """Hand over what was launched since the last time, consecutive numbers together, and wait for all of it."""
        batch, self._batch = sorted(self._batch), []
        while batch:
            count = next(
                (place for place in range(1, len(batch)) if batch[place][0] != batch[place - 1][0] + 1), len(batch)
            )
            together, batch = batch[:count], batch[count:]
            results: Sequence[JobReturn | None] = [None] * count
            error: Exception | None = None
            try:
                launcher = self._launcher()
                with stopping.at_once():
                    results = launcher.launch([own for _, _, own in together], initial_job_idx=together[0][0])
            except Exception as raised:
                error = raised
            for (number, launch, _), result in zip(together, results, strict=True):
                self._ended.put(Ended(number, launch, result, error))

    def _launch_apart(self, launcher: Launcher, number: int, launch: int, overrides: Sequence[str]) -> None:
        # Ctrl-C is for the search, which then ends its jobs in order; what is started here inherits the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            ended = self._launched(launcher, number, launch, overrides)
        except BaseException as error:
            # SystemExit would end this thread only, in silence, and the search would wait for it without end.
            ended = Ended(number, launch, None, error)
        self._ended.put(ended)

    def freed(self, number: int) -> None:
        """Take back what a job had of the machine."""
        self.gpus.give_back(number)

    @staticmethod
    def _launched(launcher: Launcher, number: int, launch: int, overrides: Sequence[str]) -> Ended:
        try:
            results = launcher.launch([list(overrides)], initial_job_idx=number)
            return Ended(number, launch, results[0], None)
        except Exception as error:
            return Ended(number, launch, None, error)

    def _launcher(self) -> Launcher:
        config, context, task = self._config.copy(), self._context, self._task
        if not self.is_local or self._is_timed:
            return Plugins.instance().instantiate_launcher(config=config, hydra_context=context, task_function=task)
        own = self._config.copy()
        with read_write(own.hydra), open_dict(own.hydra):
            own.hydra.launcher.timeout_min = NO_TIMEOUT_MIN
        launcher = Plugins.instance().instantiate_launcher(config=own, hydra_context=context, task_function=task)
        # Hydra refuses a job whose own launcher is not that of the search.
        launcher.setup(hydra_context=context, task_function=task, config=config)
        return launcher

    def _share_of_machine(self, number: int, need: Need) -> list[str]:
        """Return overrides that give a job on this machine GPUs of its own and its part of the cores."""
        if not self.is_local:
            return []
        shares = {}
        if "OMP_NUM_THREADS" not in os.environ:
            shares["OMP_NUM_THREADS"] = str(max(1, usable_cores() // (self.count * need.processes)))
        if (devices := self.gpus.take(number, need.gpus)) is not None:
            shares["CUDA_VISIBLE_DEVICES"] = devices
        return [f"+hydra.job.env_set.{name}='{value}'" for name, value in shares.items()]


def queue_launchers() -> set[str]:
    """Return the names of the launchers that hand jobs to a queue, also those of other packages."""
    found = Plugins.instance().discover(Launcher)
    return {f"{each.__module__}.{each.__name__}" for each in found if issubclass(each, QueueLauncher)}


def quiet_launchers() -> None:
    """Keep the launchers' own line about each job out of the console; the sweep has one of its own."""
    logging.getLogger(BASIC.rpartition(".")[0]).setLevel(logging.WARNING)


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
