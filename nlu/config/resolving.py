"""Turn a composed configuration into plain containers, with every interpolation that fails."""

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import Container, DictConfig, DictKeyType, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from nlu.config.nearest import nearest
from nlu.config.types import Config

MISSING = "???"
"""A value that is not set. It is reported as such, so no other rule reports it too."""

_ABSENT = re.compile(r"interpolation key '([\w.]+)' not found")


class _Unresolved:
    """Stands for a value whose interpolation failed, which `resolve` reports."""

    def __repr__(self) -> str:
        return "unresolved"


UNRESOLVED = _Unresolved()


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a composed configuration without the node `hydra`."""
    plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(plain, True)
    return plain


def resolve(config: DictConfig) -> tuple[Config, list[str]]:
    """Return the configuration as plain containers, and one problem for each value that cannot be resolved.

    A value that is not set becomes `MISSING`, one that cannot be resolved `UNRESOLVED`.
    """
    found: list[str] = []
    plain = _plain(config, "", found)
    for number, problem in enumerate(found):
        if (absent := _ABSENT.search(problem)) and (close := nearest(absent[1], _keys(plain))):
            found[number] = f"{problem}; nearest: {', '.join(close)}"
    return plain, found


def _keys(node: object, prefix: str = "") -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from _keys(value, f"{prefix}{key}.")


def _plain(node: Container, prefix: str, found: list[str]) -> Any:
    if isinstance(node, DictConfig):
        return {key: _value(node, key, f"{prefix}.{key!s}".lstrip("."), found) for key in node}
    assert isinstance(node, ListConfig)
    return [_value(node, index, f"{prefix}[{index}]", found) for index in range(len(node))]


def _value(parent: Container, key: DictKeyType, full_key: str, found: list[str]) -> Any:
    if OmegaConf.is_missing(parent, key):
        return MISSING
    try:
        value = parent[key]
    except InterpolationToMissingValueError:
        # The value it points to is reported under its own key.
        return UNRESOLVED
    except OmegaConfBaseException as error:
        unresolved: Any = OmegaConf.to_container(parent, resolve=False)
        written = unresolved[key]
        found.append(f"{full_key} is {written} but {first_line(error)}; correct the reference or the key it names")
        return UNRESOLVED
    return _plain(value, full_key, found) if isinstance(value, Container) else value


def as_written(config: DictConfig) -> Config:
    """Return a configuration as plain containers, with its interpolations as they are written."""
    plain: Any = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return dict(plain)


def as_given(texts: ListConfig) -> list[str]:
    """Return the overrides in a configuration as they were given; iterating over them would resolve interpolations."""
    plain: Any = OmegaConf.to_container(texts, resolve=False)
    return list(plain)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without a full stop, a first plain word in lower case."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    first, space, rest = line.partition(" ")
    return f"{first.lower() if first.istitle() else first}{space}{rest}"
