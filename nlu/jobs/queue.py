"""The contract of a queue of jobs, on any cluster: submit, look, cancel, read the log.

A launcher hands jobs to a queue and follows them by their tickets. A job is one run in one folder. It ends by itself,
or it is lost. The only way to learn that is to look again: an answer may never come.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nlu.config.errors import Temporary, UserError
from nlu.config.nearest import hint
from nlu.config.types import Config, ConfigLike

if TYPE_CHECKING:
    from hydra.plugins.launcher import Launcher

OWN = {"local": "nlu.jobs.local.LocalQueue", "slurm": "nlu.jobs.slurm.SlurmQueue"}
"""the queues of this package by name; any other queue is opened by its launcher"""


class JobState(StrEnum):
    """The state of a job. The last four are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        return self not in (JobState.WAITING, JobState.RUNNING)


class QueueFull(OSError, Temporary):
    """The queue is full until some jobs have ended. The jobs that it did not take are valid."""


class QueueAway(OSError, Temporary):
    """The queue does not answer now. It may have taken the jobs."""


class JobRefused(UserError):
    """The queue refused a job: the message of the queue, and what to change."""


@dataclass(frozen=True)
class Job:
    """One run that is to be started elsewhere."""

    number: int
    """its number in a grid or a search, 0 for a single run"""
    folder: str
    """the folder of its run: a path that the job sees, or a folder in an object store"""
    overrides: tuple[str, ...]
    """the arguments that compose it, as on the command line"""
    token: str = ""
    """a name that no other submission has, by which a queue finds a job whose ticket was not written down"""
    machine: str = ""
    """the machine whose process the job becomes, if that is the one that submits it; see `nlu.jobs.local`"""

    def variable(self, name: str) -> str | None:
        """Return the value that the job's own overrides give to a variable of its environment, such as its GPUs."""
        key = f"+hydra.job.env_set.{name}="
        return next((text.removeprefix(key).strip("'") for text in self.overrides if text.startswith(key)), None)


@dataclass(frozen=True)
class Ticket:
    """A job that a queue took."""

    job: Job
    id: str
    """the name of the job in the queue"""
    log: str | None = None
    """path or address of its log"""


@dataclass(frozen=True)
class Look:
    """What a queue says of a job at one moment."""

    state: JobState
    node: str | None = None
    reason: str | None = None
    """why it waits, or why it ended"""
    is_certain: bool = True
    """False if the job seems to run, but only another machine could tell"""


class Queue(ABC):
    """The queue of a cluster. Every method may raise OSError while the cluster does not answer: ask again.

    One that is `Temporary`, such as QueueAway, lets the trials of a search wait without end.
    """

    name: ClassVar[str]
    poll_s: ClassVar[float] = 1.0
    """how often one who follows a job asks for it"""
    is_elsewhere: ClassVar[bool] = False
    """whether jobs run without the files and the rights of this machine"""

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise UserError with everything that is wrong with jobs; submit and write nothing."""
        return

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> list[Ticket]:
        """Hand over the jobs, in order. Raises JobRefused, after which none of them is in the queue."""

    @abstractmethod
    def find(self, jobs: Sequence[Job]) -> list[Ticket | None]:
        """Return the ticket of each job, by its token; None for a job that never reached the queue.

        A kill in the middle of a submission loses tickets.
        """

    @abstractmethod
    def look(self, tickets: Sequence[Ticket]) -> Mapping[str, Look]:
        """Return what is known of every one of these jobs, by its id; a job that is no longer known is LOST."""

    @abstractmethod
    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """End jobs that wait or run; jobs that have ended stay as they are.

        Raises UserError for jobs that cannot be cancelled from here, after the others were asked to end.
        """

    @abstractmethod
    def log_tail(self, ticket: Ticket, lines: int = 1) -> list[str]:
        """Return the last lines of the log of a job, an empty list before it began."""

    @abstractmethod
    def outcome(self, ticket: Ticket, *, fetches: bool = True) -> object:
        """Return what an ended job returned: Hydra's JobReturn, an exit status, or None if that is not known.

        The JobReturn of a job that raised an error has that error as its value. A queue that is elsewhere fetches the
        run of the job, unless told not to.
        """


@dataclass(frozen=True)
class QueuedJob:
    """A job that a queue took, with that queue."""

    queue: Queue
    ticket: Ticket


def _by_queue(jobs: Iterable[QueuedJob]) -> list[tuple[Queue, list[Ticket]]]:
    found: dict[int, tuple[Queue, list[Ticket]]] = {}
    for job in jobs:
        found.setdefault(id(job.queue), (job.queue, []))[1].append(job.ticket)
    return list(found.values())


def look_at(jobs: Iterable[QueuedJob]) -> dict[str, Look]:
    """Return what their queues say of jobs, by token. Each queue is asked once. Raises OSError."""
    found: dict[str, Look] = {}
    for queue, tickets in _by_queue(jobs):
        looks = queue.look(tickets)
        found |= {ticket.job.token: looks[ticket.id] for ticket in tickets}
    return found


def cancel(jobs: Iterable[QueuedJob]) -> None:
    """Cancel jobs of several queues; raises as `Queue.cancel` does, after every queue was asked."""
    refused: list[str] = []
    for queue, tickets in _by_queue(jobs):
        try:
            queue.cancel(tickets)
        except UserError as error:
            refused += error.sentences
    if refused:
        raise UserError(*refused)


@dataclass(frozen=True)
class QueueContext:
    """What a queue needs to be opened."""

    settings: ConfigLike
    """the keys of hydra.launcher, as plain containers"""
    folder: Path
    """the folder of the submission: that of a grid, a search, or the one run"""
    module: str = "nlu.train"
    """the program of the jobs: python -m MODULE"""
    work: Callable[[Job], object] | None = None
    """what a process of a job calls, which can be pickled; None if nothing is to be submitted"""
    compose: Callable[[Job], Mapping[str, Any]] | None = None
    """returns the configuration of a job, as plain containers"""
    config_dirs: tuple[str, ...] = ()
    """the folders of --config-dir, absolute"""


def open_queue(name: str, context: QueueContext) -> Queue:
    """Return the queue of this name, to submit jobs or only to look after those that it has.

    A queue that is not in `OWN` is opened by its launcher: a Hydra plugin with the class attribute `queue`, its name,
    and the class method `open_queue(context)`. Raises UserError for an unknown name.
    """
    if name in OWN:
        module, _, factory = OWN[name].rpartition(".")
        return getattr(importlib.import_module(module), factory)(context)
    launchers = _launchers()
    if name not in launchers:
        raise UserError(f"{name} is not a queue of nlu or of an installed launcher; {hint(name, [*OWN, *launchers])}")
    return launchers[name].open_queue(context)


def require_valid(queue: Queue | None, jobs: Sequence[Job], configs: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise UserError with everything that is wrong with jobs, as far as this machine knows before they are submitted.

    `configs` are the configurations by the numbers of the jobs; some may be those of later jobs. Prints a warning for
    each service that does not answer.
    """
    from nlu.storage.required import require_addresses

    problems: list[str] = []
    try:
        require_addresses(configs, are_elsewhere=queue is not None and queue.is_elsewhere)
    except UserError as error:
        problems += error.sentences
    try:
        if queue is not None:
            queue.check(jobs)
    except OSError as error:
        print(f"nlu: warning: not everything was checked: {error}", file=sys.stderr)
    except UserError as error:
        problems += error.sentences
    if problems:
        raise UserError(*problems)


def check_without_launch(
    launcher: "Launcher", jobs: Sequence[Sequence[str]], configs: Sequence[Mapping[str, object]]
) -> None:
    """Check all that a launch of these jobs would check before it hands them over. Raises UserError with all problems.

    A launcher of nlu has its own `check`. With any other launcher the remote addresses are asked for.
    """
    if (check := getattr(launcher, "check", None)) is not None:
        check(jobs, configs)
        return
    from nlu.storage.required import require_addresses

    require_addresses(dict(enumerate(configs)))


def end_dry_run(config: Config) -> int:
    """Check what a submission of this one run would check, print the verdict of `dry_run=true`, and return 0.

    Raises UserError with everything that is wrong.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from nlu.config.console import print_dry_run
    from nlu.config.resolving import as_given

    hydra: Any = HydraConfig.get()
    name = getattr(get_class(hydra.launcher._target_), "queue", None)
    run_dir = Path(hydra.runtime.output_dir)
    queue, job = None, Job(0, str(run_dir), tuple(as_given(hydra.overrides.task)), "dry-run")
    if name:
        settings: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
        module = f"nlu.{hydra.job.config_name}"
        dirs = tuple(source.path for source in hydra.runtime.config_sources if source.provider == "command-line")
        queue = open_queue(name, QueueContext(settings, run_dir, module, None, lambda _: config, dirs))
    require_valid(queue, [job], {0: config})
    return print_dry_run(config)


def _launchers() -> dict[str, Any]:
    """Return the plugins that open a queue, by its name."""
    # To find one plugin Hydra imports all of them, so the queues of this package do without.
    from hydra.core.plugins import Plugins
    from hydra.plugins.launcher import Launcher

    from nlu.config.choices import find_plugins

    find_plugins()
    found: list[Any] = Plugins.instance().discover(Launcher)
    return {launcher.queue: launcher for launcher in found if hasattr(launcher, "open_queue")}
