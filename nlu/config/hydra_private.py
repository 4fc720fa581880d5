"""What nlu uses of Hydra's private functions: only what hides secrets in the configurations that Hydra saves.

Read in Hydra READ_IN. If Hydra saves them in another way, a test fails, and this module must be adapted.
"""

from pathlib import Path
from typing import Any

from hydra.core import utils
from omegaconf import DictConfig, OmegaConf

from nlu.storage.redaction import hide_setting, without_secrets

READ_IN = "1.4.0rc3"
_save_config = utils._save_config
"""taken before it is replaced, so that replacing it twice hides only once"""


def hide_saved_configs() -> None:
    """Make Hydra hide secrets in what it writes into `hydra.output_subdir`, until this process ends."""
    utils._save_config = _save_hidden


def _save_hidden(cfg: DictConfig, filename: str, output_dir: Path) -> None:
    _save_config(hidden(cfg), filename, output_dir)


def hidden(config: Any) -> Any:
    """Return a configuration, or its list of overrides, as OmegaConf's containers without secrets."""
    # Unresolved: a value from the environment must not be written out.
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return OmegaConf.create(
        [hide_setting(text) for text in plain] if isinstance(plain, list) else without_secrets(plain)
    )
