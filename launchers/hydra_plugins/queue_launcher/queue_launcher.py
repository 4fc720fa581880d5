"""The plugins `hydra/launcher=local` and `slurm`, and their keys, which conf/hydra/launcher/*.yaml explain.

Hydra imports this at every start; heavy imports are in `_launch` and `nlu.jobs`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from nlu.config.types import ConfigLike

if TYPE_CHECKING:
    from hydra_plugins.queue_launcher._launch import Launch

    from nlu.jobs.submissions import Submitted


@dataclass
class LocalLauncherConf:
    """Processes of this machine. A null leaves a key to the command."""

    _target_: str = "hydra_plugins.queue_launcher.queue_launcher.LocalLauncher"
    gpus: int | None = None
    timeout_min: int | None = None
    name: str = "${hydra.job.name}"
    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    wait: bool = True


@dataclass
class SlurmLauncherConf:
    """Jobs of Slurm, a grid as one array. A null leaves a key to the cluster's own default."""

    _target_: str = "hydra_plugins.queue_launcher.queue_launcher.SlurmLauncher"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    gpus: int | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    timeout_min: int = 60
    signal_delay_s: int = 120
    max_num_timeout: int = 100
    array_parallelism: int = 256
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    srun_args: list[str] = field(default_factory=list)
    name: str = "${hydra.job.name}"
    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    wait: bool = True


for group in ("hydra/launcher", "hydra/launcher/types"):
    for name, keys in (("local", LocalLauncherConf()), ("slurm", SlurmLauncherConf())):
        # What a program itself has under such a name stays.
        with suppress(ValueError):
            ConfigStore.instance().store(name, keys, group=group, provider="queue_launcher", replace=False)


class QueueLauncher(Launcher):
    """Hands jobs to a queue, and follows them; another package may bring its own (`nlu.jobs.queue.open_queue`)."""

    queue = ""

    def __init__(self, **params: Any) -> None:
        self.params = {
            key: OmegaConf.to_object(one) if OmegaConf.is_config(one) else one for key, one in params.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.hydra_context, self.task_function = config, hydra_context, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; return what each returned, an error if it was lost; without wait nothing. Raises JobRefused."""
        return self._launch(job_overrides, initial_job_idx).run()

    def attach(self, job: "Submitted") -> Sequence[JobReturn]:
        """Follow a job of an earlier command (`nlu.jobs.following.open_jobs`); return what `launch` would for it."""
        return self._launch([job.job.overrides], job.job.number).follow_again(job)

    def check(self, job_overrides: Sequence[Sequence[str]], configs: Sequence[ConfigLike]) -> None:
        """Raise UserError with all that is wrong with jobs, given with their configurations, as `launch` does."""
        launch = self._launch(job_overrides, 0)
        launch.require(launch.jobs, dict(enumerate(configs)))

    def _launch(self, overrides: Sequence[Sequence[str]], first: int) -> "Launch":
        from hydra_plugins.queue_launcher._launch import Launch

        return Launch(self.queue, self.params, overrides, first, self.config, self.hydra_context, self.task_function)


class LocalLauncher(QueueLauncher):
    """Processes of this machine, by submitit."""

    queue = "local"


class SlurmLauncher(QueueLauncher):
    """Jobs of Slurm, by submitit."""

    queue = "slurm"
