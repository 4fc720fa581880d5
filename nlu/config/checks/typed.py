"""Say what is wrong with the value of a key whose type Hydra checks: those of sweepers, launchers, and Hydra's own."""

import ast
import dataclasses
import typing
from contextlib import suppress

from omegaconf import Container, DictConfig, OmegaConf

from nlu.config.checks.reading import read_override
from nlu.config.checks.values import broken_rule, check_value, show
from nlu.config.errors import UserError


def type_problem(override: str, config: DictConfig) -> str | None:
    """Return key, value, rule and remedy if an override breaks the type of its key; None if it does not.

    `config` has the key `hydra`. Only keys of dataclasses have a type.
    """
    with suppress(UserError, ValueError):
        parsed = read_override(override)
        key = parsed.key_or_group
        annotation = _annotation(key, config)
        if annotation is None or parsed.is_sweep_override():
            return None
        value = _plain(parsed.value())
        rule = check_value(annotation, value)
        if rule is not None and (meant := _without_or_with_brackets(annotation, key, value)) is not None:
            return f"{key} is {show(value)} but {rule}; write {meant}"
        return broken_rule(key, annotation, value)
    return None


def _annotation(key: str, config: DictConfig) -> ast.expr | None:
    """Return the type of a key as it is written in its dataclass; None if none is known."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_resolution_failure=False) if parent else None
    owner = OmegaConf.get_type(node) if isinstance(node, Container) else None
    if not isinstance(owner, type) or not dataclasses.is_dataclass(owner):
        return None
    hint = typing.get_type_hints(owner).get(name)
    written = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return None if hint is None else ast.parse(written, mode="eval").body


def _plain(value: object) -> object:
    """Return a value without Hydra's marks of quotes."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


def _without_or_with_brackets(annotation: ast.expr, key: str, value: object) -> str | None:
    """Return the override with the only item of a list, or with a list of the value, if that fits the type."""
    if isinstance(value, list) and len(value) == 1 and check_value(annotation, value[0]) is None:
        return f"{key}={_bare(value[0])}"
    if isinstance(value, str | int | float) and check_value(annotation, [value]) is None:
        return f"'{key}=[{_bare(value)}]'"
    return None


def _bare(value: object) -> str:
    return value if isinstance(value, str) else show(value)
