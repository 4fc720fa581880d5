"""The plugins that Hydra finds by the entry points of this package, from a wheel and from an editable install."""

from nlu.config.choices import find_plugins

find_plugins()

from hydra_plugins.grid_sweeper.grid_sweeper import GridSweeper  # noqa: E402
from hydra_plugins.hyperband_sweeper.hyperband_sweeper import HyperbandSweeper  # noqa: E402
from hydra_plugins.pai_launcher.pai_launcher import PaiLauncher  # noqa: E402
from hydra_plugins.queue_launcher.queue_launcher import LocalLauncher, SlurmLauncher  # noqa: E402

__all__ = ["GridSweeper", "HyperbandSweeper", "LocalLauncher", "PaiLauncher", "SlurmLauncher"]
