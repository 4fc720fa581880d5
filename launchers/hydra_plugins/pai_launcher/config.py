"""Types and defaults of the keys of `hydra/launcher=pai`. Hydra imports this at every start, so it imports little."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

from ._settings import PaiSettings


@dataclass
class PaiLauncherConf(PaiSettings):
    """Jobs on Alibaba Cloud's PAI. A terminal asks for keys that are needed and null, and the project keeps them."""

    _target_: str = "hydra_plugins.pai_launcher.pai_launcher.PaiLauncher"
    wait: bool = True


for group in ("hydra/launcher", "hydra/launcher/types"):
    ConfigStore.instance().store(group=group, name="pai", node=PaiLauncherConf(), provider="pai_launcher")
