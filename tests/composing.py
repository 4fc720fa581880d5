"""Configurations as the command composes them, without composing the choices of groups again and again.

Hydra takes a quarter of a second for those, and tests run hundreds of configurations that differ only in values.
test_composing.py compares both ways.
"""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from nlu.config.choices import RUN, SCHEMAS, conf_dir
from nlu.config.compose import Loader
from nlu.config.entry.app import prepare
from nlu.config.resolving import without_hydra


def prepared(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the validated configuration of `python -m nlu.train OVERRIDES`. Raises UserError with all problems."""
    return prepare(composed(overrides))


def composed(overrides: Sequence[str], config_name: str = "train") -> DictConfig:
    """Return what Hydra composes of the overrides, neither resolved nor validated."""
    values = [override for override in overrides if _is_value(override)]
    config = deepcopy(_of_choices(config_name, *(override for override in overrides if override not in values)))
    for override in values:
        key, value = _read(override)
        OmegaConf.update(config, key, deepcopy(value), merge=True, force_add=True)
    return config


def composed_at_once(overrides: Sequence[str], config_name: str = "train") -> DictConfig:
    """Return what `composed` returns, composed as the command does."""
    with initialize_config_dir(str(conf_dir())):
        search_path = GlobalHydra.instance().config_loader().get_search_path()
        loader = Loader(search_path, SCHEMAS.get(config_name, RUN))
        return without_hydra(loader.load_configuration(config_name, list(overrides), RunMode.RUN))


def _is_value(override: str) -> bool:
    """Whether an override changes the value of a key that is there, and no composition."""
    key = override.partition("=")[0]
    is_key = key.replace(".", "").replace("_", "").isalnum() and not key.startswith("hydra.")
    return is_key and not (conf_dir() / key).is_dir()


@cache
def _of_choices(config_name: str, *overrides: str) -> DictConfig:
    return composed_at_once(overrides, config_name)


@cache
def _read(override: str) -> tuple[str, Any]:
    parsed = OverridesParser.create().parse_override(override)
    assert not parsed.is_sweep_override(), f"{override} is for --multirun"
    return parsed.key_or_group, parsed.value()
