"""Keys that a configuration leaves to their defaults, which Hydra alone would not let anyone set."""

from collections.abc import Sequence
from typing import Any

from hydra import initialize_config_search_path
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.checks.composing import compose, made_once, resolved
from nlu.config.checks.reading import USER_MISTAKES, first_values, read_override
from nlu.config.checks.validate import known_keys
from nlu.config.errors import UserError
from nlu.config.schemas import RUN


def with_known_keys(
    config_name: str, search_path: Sequence[str], overrides: Sequence[str], schema: str = RUN
) -> list[str]:
    """Return the overrides, with `++` before each key that a signature knows and the configuration leaves out.

    Hydra itself takes no key that is not written in some file, though it has a default and stands in a run's records.
    """
    with initialize_config_search_path(list(search_path)):
        try:
            read = [(override, read_override(override)) for override in overrides]
            plain = {
                override: parsed.key_or_group
                for override, parsed in read
                if override[0] not in "+~" and parsed.package is None and "." in parsed.key_or_group
            }
            if not plain:
                return list(overrides)
            others = first_values([override for override in overrides if override not in plain])
            config = compose(config_name, others)
        except (UserError, *USER_MISTAKES):
            return list(overrides)
    left_out = {override for override, key in plain.items() if is_left_out(key, config, schema)}
    return [f"++{override}" if override in left_out else override for override in overrides]


def is_left_out(key: str, config: DictConfig, schema: str) -> bool:
    """Whether a key is not in a composed configuration but in a signature that it names."""
    return "." in key and not has_key(config, key) and key in settable_keys(config, schema)


def settable_keys(config: DictConfig, schema: str) -> set[str]:
    """Return the full keys that a composed configuration has, and those that the signatures in it know."""
    return made_once(config, f"keys of {schema}", lambda composed: known_keys(resolved(composed)[0], schema))


def has_key(config: DictConfig, key: str) -> bool:
    """Whether a dotted key is in a composed configuration, whatever its value."""
    node: Any = config
    *parents, last = key.split(".")
    for name in parents:
        if not isinstance(node, DictConfig) or name not in node or OmegaConf.is_missing(node, name):
            return False
        try:
            node = node[name]
        except OmegaConfBaseException:
            return False
    return isinstance(node, DictConfig) and last in node.keys()
