"""The plugin that Hydra finds; all that is heavy waits in `_impl`."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from . import config as config


class HyperbandSweeper(Sweeper):
    """Draws trials, launches each by itself, stops the bad ones early, and goes on where it was broken off."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        """Run the search to its end. Raises UserError before the first trial for whatever the user must change."""
        from ._impl import sweep

        sweep(self.settings, arguments, self.hydra_context, self.task_function, self.config)
