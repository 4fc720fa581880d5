"""What nlu uses of Hydra's private functions: only what hides secrets in the configurations that Hydra saves.

Read in Hydra READ_IN. If Hydra saves them in another way, a test fails, and this module must be adapted.
"""

from pathlib import Path
from typing import Any

from hydra.core import utils
from omegaconf import OmegaConf

from nlu.storage.redaction import hide_setting, without_secrets

READ_IN = "1.4.0rc3"


def hide_saved_configs() -> None:
    """Make Hydra hide secrets in what it writes into `hydra.output_subdir`, until this process ends."""
    save = utils._save_config
    if getattr(save, "hides", False):
        return

    def _save_config(cfg: Any, filename: str, output_dir: Path) -> None:
        save(hidden(cfg), filename, output_dir)

    _save_config.hides = True  # type: ignore[attr-defined]
    utils._save_config = _save_config


def hidden(config: Any) -> Any:
    """Return a configuration, or its list of overrides, as OmegaConf's containers without secrets."""
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return OmegaConf.create(
        [hide_setting(text) for text in plain] if isinstance(plain, list) else without_secrets(plain)
    )
