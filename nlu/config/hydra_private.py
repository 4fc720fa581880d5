"""What nlu uses of Hydra's private functions: how it saves configurations, and how it sets dictionaries.

Read in Hydra READ_IN. If Hydra does it in another way, a test fails, and this module must be adapted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core import utils
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from nlu.config.targets import TARGET
from nlu.storage.redaction import hide_setting, without_secrets

READ_IN = "1.4.0rc3"
_save_config = utils._save_config
"""taken before it is replaced, so that replacing it twice hides only once"""
_apply_overrides = getattr(ConfigLoaderImpl, "_apply_overrides_to_config", None)


def adapt_hydra() -> None:
    """Make Hydra hide secrets in what it writes into `hydra.output_subdir`, until this process ends.

    It also makes `KEY={...}` replace a dictionary, see `is_replaced`. Without the private function, Hydra merges.
    """
    utils._save_config = _save_hidden
    if _apply_overrides is not None:
        ConfigLoaderImpl._apply_overrides_to_config = staticmethod(_apply_replacing)  # type: ignore[assignment, method-assign]


def _apply_replacing(overrides: Sequence[Override], config: DictConfig) -> None:
    assert _apply_overrides is not None
    for override in overrides:
        is_plain = override.package is None and not (override.is_add() or override.is_force_add())
        if is_plain and is_replaced(config, override.key_or_group, override.value()):
            OmegaConf.update(config, override.key_or_group, override.value(), merge=False)
        else:
            _apply_overrides([override], config)


def is_replaced(config: DictConfig, key: str, value: object) -> bool:
    """Whether an override `KEY=VALUE` replaces what the key holds: it is a dictionary, and so is the value.

    Groups (`input={...}`), Hydra's own keys and dictionaries that hold a choice with its own keys are merged. Otherwise
    `data.fields={text: title}` would keep the fields of a named data set that have other roles.
    """
    if not isinstance(value, dict) or "." not in key or key.startswith("hydra."):
        return False
    try:
        held = OmegaConf.select(config, key, throw_on_missing=False, throw_on_resolution_failure=False)
    except (TypeError, ValueError):
        # The key is within a value that is not a dictionary; Hydra names it.
        return False
    if not isinstance(held, DictConfig):
        return False
    plain = OmegaConf.to_container(held, resolve=False)
    assert isinstance(plain, dict)
    has_choices = TARGET in plain or any(isinstance(one, dict) and TARGET in one for one in plain.values())
    return TARGET in value or not has_choices


def _save_hidden(cfg: DictConfig, filename: str, output_dir: Path) -> None:
    _save_config(hidden(cfg), filename, output_dir)


def hidden(config: Any) -> Any:
    """Return a configuration, or its list of overrides, as OmegaConf's containers without secrets."""
    # Unresolved: a value from the environment must not be written out.
    plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return OmegaConf.create(
        [hide_setting(text) for text in plain] if isinstance(plain, list) else without_secrets(plain)
    )
