"""The plugin that Hydra finds; heavy imports are in `_impl`."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from . import config as config


class HyperbandSweeper(Sweeper):
    """Draws trials, launches each of them, stops bad ones early, and continues an interrupted search."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        """Run the search to its end. Raises UserError, before the first trial, with everything the user must change."""
        from ._impl import sweep

        assert self.hydra_context is not None and self.config is not None, "Hydra calls setup first"
        sweep(self.settings, arguments, self.hydra_context, self.task_function, self.config)
