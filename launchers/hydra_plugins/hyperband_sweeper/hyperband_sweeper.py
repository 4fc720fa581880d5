"""The plugin that Hydra finds for `hydra/sweeper=hyperband`; the search itself is `nlu.search`."""

from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from nlu.search.keys import SearchKeys

# Hydra's scanner may import this file after an entry point has.
ConfigStore.instance().store(
    group="hydra/sweeper", name="hyperband", node=SearchKeys, provider="hyperband_sweeper", replace=True
)


class HyperbandSweeper(Sweeper):
    """Draws trials, launches each of them, stops bad ones early, and continues an interrupted search."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    @staticmethod
    def problems(config: DictConfig, arguments: list[str], loader: ConfigLoader) -> list[str]:
        """Return what is wrong with the keys of the sweeper and the space, see `nlu.config.entry.hydra_keys`."""
        from nlu.search.preflight import read_settings

        _, of_settings, of_space = read_settings(config.hydra.sweeper, arguments, config, loader)
        return [*of_settings, *of_space]

    def sweep(self, arguments: list[str]) -> None:
        """Run the search to its end. Raises UserError, before the first trial, with everything the user must change."""
        from nlu.search.sweep import sweep

        assert self.hydra_context is not None and self.config is not None, "Hydra calls setup first"
        sweep(self.settings, arguments, self.hydra_context, self.task_function, self.config)
