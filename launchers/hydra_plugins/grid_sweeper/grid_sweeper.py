"""The plugin that Hydra finds. Its keys are in conf/hydra/sweeper/basic.yaml, which replaces Hydra's own choice."""

from collections.abc import Mapping, Sequence

from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Runs each combination, after all of them were found valid."""

    def __init__(self, params: Mapping[str, object] | None = None) -> None:
        self.params = dict(params or {})
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Sequence[Sequence[object]]:
        """Run the grid. Raises UserError, before anything is written, with everything that is wrong with any job."""
        # Imported here, since Hydra imports this file at each start.
        from hydra.core.override_parser.overrides_parser import OverridesParser

        from nlu.config.entry.grid import run_grid
        from nlu.jobs.queue import check_without_launch

        assert self.hydra_context is not None and self.config is not None and self.launcher is not None
        given = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        # glob(*) asks the loader for the choices of a group.
        overrides = OverridesParser.create(self.hydra_context.config_loader).parse_overrides(given)
        return [run_grid(overrides, self.hydra_context, self.config, self.launcher, check_without_launch)]
