"""The plugins that Hydra finds; heavy imports are in `_impl` and `nlu.jobs`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.queue_launcher import config as config
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from hydra_plugins.queue_launcher._impl import Launch

    from nlu.jobs.submissions import Submitted


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
        """Follow a job of an earlier command (`nlu.jobs.listing.open_jobs`); return what `launch` would for it."""
        return self._launch([job.job.overrides], job.job.number).follow_again(job)

    def check(self, job_overrides: Sequence[Sequence[str]], configs: Sequence[Mapping[str, Any]]) -> None:
        """Raise UserError with all that is wrong with jobs, given with their configurations, as `launch` does."""
        launch = self._launch(job_overrides, 0)
        launch.require(launch.jobs, dict(enumerate(configs)))

    def _launch(self, overrides: Sequence[Sequence[str]], first: int) -> "Launch":
        from hydra_plugins.queue_launcher._impl import Launch

        return Launch(self.queue, self.params, overrides, first, self.config, self.hydra_context, self.task_function)


class LocalLauncher(QueueLauncher):
    """Processes of this machine, by submitit."""

    queue = "local"


class SlurmLauncher(QueueLauncher):
    """Jobs of Slurm, by submitit."""

    queue = "slurm"
