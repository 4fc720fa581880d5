"""The plugins that Hydra finds; all that is heavy waits in `_impl` and `nlu.launching`."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from . import config as config


class QueueLauncher(Launcher):
    """Hands jobs to a queue, writes down that it did, and follows them to their end."""

    queue = ""
    """by which `nlu.launching.queues` knows the queue"""
    keys: Any = None
    """the dataclass of its keys"""

    def __init__(self, **params: Any) -> None:
        self.params = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in params.items()
        }
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; returns what each returned, in order, and of one that was cancelled or lost that it was.

        With `wait=false` nothing is returned. Raises JobRefused where the queue takes none of them.
        """
        from ._impl import launch

        assert self.config is not None and self.hydra_context is not None and self.task_function is not None
        return launch(
            self.queue, self.params, job_overrides, initial_job_idx, self.config, self.hydra_context, self.task_function
        )


class LocalLauncher(QueueLauncher):
    """Processes of this machine, by submitit."""

    queue = "local"
    keys = config.LocalLauncherConf


class SlurmLauncher(QueueLauncher):
    """Jobs of Slurm, by submitit."""

    queue = "slurm"
    keys = config.SlurmLauncherConf


class PaiLauncher(QueueLauncher):
    """Jobs on Alibaba Cloud's PAI: DLC, or PAI commands of MaxCompute."""

    queue = "pai"
    keys = config.PaiLauncherConf
