"""Say what is wrong with the value of a key whose type Hydra checks: those of sweepers, launchers, and Hydra's own."""

import ast
import dataclasses
import typing
from contextlib import suppress

from omegaconf import Container, DictConfig, OmegaConf

from nlu.config.checks.reading import read_override
from nlu.config.checks.values import broken_rule, show
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
        problem = broken_rule(key, annotation, value)
        return None if problem is None else _with_the_value_itself(problem, key, value)
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


def _with_the_value_itself(problem: str, key: str, value: object) -> str:
    """Put in the very value as a remedy, where it has brackets too many or too few."""
    rule = problem.partition(" but ")[2].partition("; ")[0]
    if isinstance(value, list) and len(value) == 1 and "a list" not in rule and "a mapping" not in rule:
        return f"{problem.partition('; ')[0]}; write {key}={value[0]}"
    if isinstance(value, str | int | float) and rule.startswith("must be a list"):
        return f"{problem.partition('; ')[0]}; write '{key}=[{show(value).strip(chr(34))}]'"
    return problem
