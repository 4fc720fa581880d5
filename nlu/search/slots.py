"""Start the jobs of a search: side by side, each in a thread with its own launcher, or one at a time.

Trials on this machine divide its GPUs among them.
"""

import contextvars
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from nlu.config import stopping
from nlu.config.entry.grid import raised_in
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.jobs import full_queue
from nlu.jobs.following import Listed, open_jobs
from nlu.jobs.queue import JobRefused
from nlu.jobs.requeue import refusal_of, was_lost
from nlu.jobs.submissions import Submitted
from nlu.runs.provenance import usable_cores
from nlu.search.faults import last_line
from nlu.storage.refusals import Pauses

LOCAL = "hydra_plugins.queue_launcher.queue_launcher.LocalLauncher"
REMEDY = "; correct what hydra.launcher sets"
VISIBLE = "CUDA_VISIBLE_DEVICES"
AGAIN_S = Pauses(1.0, 60.0)
"""the pauses after which a queue that does not answer is asked again for jobs of an earlier command"""
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


@dataclass(frozen=True)
class Need:
    """The processes and GPUs of a trial."""

    processes: int = 1
    gpus: int = 1


def need_of(config: DictConfig) -> Need:
    """Return the need of a trial of this configuration; a program without trainer.devices is one process."""
    devices = OmegaConf.select(config, "trainer.devices")
    processes = devices if isinstance(devices, int) and devices > 0 else 1
    return Need(processes, 0 if OmegaConf.select(config, "trainer.device") == "cpu" else processes)


class Gpus:
    """GPUs, each of which one trial uses at a time. A GPU that is twice in `names` counts as two."""

    def __init__(self, names: Sequence[str]):
        self._free = list(names)
        self._order = list(names)
        self._taken: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def at_once(self, gpus: int, wanted: int) -> int:
        """Return how many trials with `gpus` GPUs each can run at once, at most `wanted`, at least one."""
        return min(wanted, max(1, len(self) // gpus)) if self._order and gpus else wanted

    def require(self, gpus: int) -> None:
        """Raise UserError if a trial would never get so many GPUs."""
        if self._order and gpus > len(self):
            raise UserError(
                f"trainer.devices is {gpus}, but a trial on this machine can have {counted(len(self), 'GPU')} only; "
                f"set trainer.devices to <= {len(self)}, or trainer.device=cpu"
            )

    def has_free(self, gpus: int) -> bool:
        return not self._order or gpus <= len(self._free)

    def take(self, number: int, gpus: int) -> str | None:
        """Return the value of CUDA_VISIBLE_DEVICES for a trial; None without GPUs, or if it needs none."""
        if not self._order or not gpus:
            return None
        # Each GPU has one trial at a time; two would slow each other down and may run out of memory.
        assert self.has_free(gpus) and number not in self._taken
        self._taken[number], self._free = self._free[:gpus], self._free[gpus:]
        return ",".join(self._taken[number])

    def hold(self, number: int, names: Sequence[str]) -> None:
        """Take the GPUs that the job of a trial was given by an earlier command."""
        self._taken[number] = [name for name in names if name in self._free]
        for name in self._taken[number]:
            self._free.remove(name)

    def give_back(self, number: int) -> None:
        """Free the GPUs of a trial. They keep the order of the machine, so that neighbors are used together."""
        self._free = sorted(self._free + self._taken.pop(number, []), key=self._order.index)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA would see, without importing torch."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    # The driver lists its devices here, so neither torch nor a program of the vendor is needed.
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(driver.iterdir())))] if driver.is_dir() else []


@dataclass(frozen=True)
class Ended:
    """A launch that has ended."""

    number: int
    launch: int
    """the number of this launch of the trial, from 1"""
    result: JobReturn | None
    error: BaseException | None

    @property
    def never_began(self) -> bool:
        """Whether the launcher did not start the job. A job that died raises one of submitit's own errors."""
        return self.error is not None and not was_lost(self.error)

    @property
    def refusal(self) -> str | None:
        """The message with which the queue, or its command, refused the job."""
        if isinstance(self.error, JobRefused):
            return last_line(self.error).removesuffix(REMEDY)
        said = refusal_of(self.error)
        return None if said is None else f"its job was refused: {said}"

    @property
    def failure(self) -> BaseException | None:
        """The error that the job or the launcher raised."""
        if self.error is not None or self.result is None or self.result.status != JobStatus.FAILED:
            return self.error
        raised = raised_in(self.result)
        return raised if isinstance(raised, BaseException) else RuntimeError(f"it returned {raised!r}")

    @property
    def value(self) -> Any:
        return self.result.return_value if self.result is not None and self.failure is None else None

    @property
    def reason(self) -> str:
        """Why the launch left the trial without an outcome, in a few words."""
        return last_line(self.failure) if self.failure is not None else f"it returned {self.value!r}"


class Slots:
    """The slots of a search, each of which holds one job.

    Launchers of queues are called from a thread per job, so `launch` returns at once. Any other launcher may not be
    thread-safe: there is one slot, and `launch` returns after the job. Jobs on this machine never share a GPU, so there
    are fewer than `wanted` slots if the GPUs do not suffice for trials with at least `least_gpus` each.
    """

    def __init__(self, config: DictConfig, context: HydraContext, task: TaskFunction, wanted: int, least_gpus: int = 1):
        # OmegaConf detaches nodes from their tree while it copies them, so other threads must not read this copy.
        self._config, self._context, self._task = config.copy(), context, task
        self.target = str(config.hydra.launcher._target_)
        self.is_threaded = self.target in queue_launchers()
        self.gpus = Gpus(visible_gpus() if self.is_local else [])
        self._least_gpus = least_gpus
        self.count = self.gpus.at_once(least_gpus, wanted) if self.is_threaded else 1
        self._ended: queue.Queue[Ended] = queue.Queue()

    @property
    def is_local(self) -> bool:
        return self.target == LOCAL

    def sentence(self, wanted: int) -> str | None:
        """Return why fewer trials run at a time than were asked for; None if as many do."""
        name = self.target.rpartition(".")[2]
        if self.count == wanted:
            return None
        if self.is_threaded:
            each = "a GPU each" if self._least_gpus == 1 else f"at least {self._least_gpus} GPUs each"
            return (
                f"hydra.sweeper.n_jobs is {wanted}, but trials take {each}, of which there are {len(self.gpus)}, so "
                f"{self.count} run at a time; a GPU that CUDA_VISIBLE_DEVICES names twice is shared by two trials"
            )
        why = "runs jobs in this process" if self.target == BASIC else "may not be called from several threads"
        return (
            f"hydra.sweeper.n_jobs is {wanted}, but {name} {why}, so trials run one at a time; "
            "hydra/launcher=local runs them side by side"
        )

    def next_ended(self, wait_s: float = 0.0) -> Ended | None:
        """Return the next launch that has ended, None if none does within `wait_s` seconds."""
        try:
            return self._ended.get(timeout=wait_s)
        except queue.Empty:
            return None

    def wait(self, wait_s: float) -> None:
        """Return when a launch has ended, which `next_ended` will return, or after `wait_s` seconds."""
        if (ended := self.next_ended(wait_s)) is not None:
            self._ended.put(ended)

    def launch(self, number: int, launch: int, overrides: Sequence[str], need: Need = Need()) -> None:  # noqa: B008
        """Start the job of a trial, for which GPUs must be free. `next_ended` returns how it ended."""
        own = [*overrides, *self._share_of_machine(number, need)]
        self._run(number, launch, lambda launcher: launcher.launch([own], initial_job_idx=number))

    def open_jobs(self, say: Callable[[str], None]) -> dict[int, Listed]:
        """Return the jobs of trials that an earlier command submitted and that have not ended, by trial.

        Waits while their queue does not answer; `say` then gets the reason.
        """
        if not self.is_threaded:
            return {}
        for number, pause_s in enumerate(AGAIN_S):
            try:
                return open_jobs(Path(self._config.hydra.sweep.dir))
            except OSError as error:
                if number == 0:
                    say(f"the search waits, since it is not known which of its jobs still run: {error}")
                if not full_queue.pause(pause_s):
                    break
        return {}

    def attach(self, number: int, launch: int, job: Submitted) -> None:
        """Wait for a job of `open_jobs` as for one that was launched now; the GPUs that it was given are taken."""
        self.gpus.hold(number, (job.job.variable(VISIBLE) or "").split(","))
        self._run(number, launch, lambda launcher: launcher.attach(job))

    def _run(self, number: int, launch: int, call: Callable[[Any], Sequence[JobReturn]]) -> None:
        launcher = Plugins.instance().instantiate_launcher(
            config=self._config.copy(), hydra_context=self._context, task_function=self._task
        )

        def work() -> None:
            result, raised = None, None
            try:
                result = call(launcher)[0]
            except Exception as error:
                raised = error
            self._ended.put(Ended(number, launch, result, raised))

        def work_apart() -> None:
            # Only the search handles Ctrl-C, and ends its jobs itself. Processes that start here inherit the mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                work()
            except BaseException as error:
                # SystemExit would end only this thread, without a message, and the search would wait for it forever.
                self._ended.put(Ended(number, launch, None, error))

        if not self.is_threaded:
            # A run in this process handles signals itself; other code of the job is interrupted.
            with stopping.at_once():
                work()
            return
        # The context identifies the search (nlu.jobs.full_queue).
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work_apart,), name=f"trial-{number}", daemon=True).start()

    def freed(self, number: int) -> None:
        """Free the GPUs of a job that has ended."""
        self.gpus.give_back(number)

    def _share_of_machine(self, number: int, need: Need) -> list[str]:
        """Return the overrides that give a job on this machine its GPUs and its share of the cores."""
        if not self.is_local:
            return []
        shares = {}
        if "OMP_NUM_THREADS" not in os.environ:
            # Each process would otherwise start as many threads as there are cores.
            shares["OMP_NUM_THREADS"] = str(max(1, usable_cores() // (self.count * need.processes)))
        if (devices := self.gpus.take(number, need.gpus)) is not None:
            shares[VISIBLE] = devices
        # Through the job's own configuration, since submitit starts it with the environment of this process.
        return [f"+hydra.job.env_set.{name}='{value}'" for name, value in shares.items()]


def queue_launchers() -> set[str]:
    """Return the names of the launchers that hand jobs to a queue, and can attach to one that is there already."""
    found = Plugins.instance().discover(Launcher)
    return {f"{each.__module__}.{each.__name__}" for each in found if hasattr(each, "attach")}


def quiet_launchers() -> None:
    """Hide the line that a launcher logs for each job: the search prints its own."""
    logging.getLogger(BASIC.rpartition(".")[0]).setLevel(logging.WARNING)
