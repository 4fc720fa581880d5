"""Compose configurations with Hydra, and turn them into plain containers with every interpolation that fails.

Within `composing_once` each configuration is composed once, however many checks ask for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import Container, DictConfig, DictKeyType, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

MISSING = "???"
"""A value that is not set. It is reported as such, so no other rule reports it too."""


class _Unresolved:
    """Stands for a value whose interpolation failed, which `resolve` reports."""

    def __repr__(self) -> str:
        return "unresolved"


UNRESOLVED = _Unresolved()
T = TypeVar("T")
_Known = dict[tuple[object, ...], DictConfig | Exception]
"""What was composed, or the error, by all that it depends on, beginning with whether the node `hydra` is included."""
MOST_KEPT = 64
"""A search composes a configuration of 0.2 MB for each trial; the oldest is dropped."""
_known: ContextVar[_Known | None] = ContextVar("compositions", default=None)
_made: ContextVar[dict[str, tuple[DictConfig, Any]] | None] = ContextVar("made of the last one", default=None)
"""What was made of a composed configuration, with that configuration, by name."""


@contextmanager
def composing_once() -> Iterator[None]:
    """Keep what is composed within the block, during which configuration files must not change."""
    token, token_of_made = _known.set({}), _made.set({})
    try:
        yield
    finally:
        _made.reset(token_of_made)
        _known.reset(token)


def compose(config_name: str, overrides: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """Return a configuration, which must not be changed, with the node `hydra` on request; raise what Hydra raises."""
    known = _known.get()
    if known is None:
        return hydra.compose(config_name, list(overrides), return_hydra_config=with_hydra)
    # The same overrides give another configuration on another search path.
    path = [(one.provider, one.path) for one in GlobalHydra.instance().config_loader().get_search_path().get_path()]
    key = (config_name, *overrides, *path)
    found = known.get((with_hydra, *key))
    if found is None:
        # The configuration with `hydra` includes the other one, and cutting is faster than composing.
        whole = known.get((True, *key))
        if isinstance(whole, DictConfig):
            found = without_hydra(whole)
        else:
            # An error is kept too: the same overrides fail in the same way.
            found = whole or _composed(config_name, overrides, with_hydra)
        while len(known) >= MOST_KEPT:
            known.pop(next(iter(known)), None)
        known[with_hydra, *key] = found
    if isinstance(found, Exception):
        raise found
    return found


def _composed(config_name: str, overrides: Sequence[str], with_hydra: bool) -> DictConfig | Exception:
    try:
        return hydra.compose(config_name, list(overrides), return_hydra_config=with_hydra)
    except Exception as error:
        return error


def made_once(config: DictConfig, name: str, make: Callable[[DictConfig], T]) -> T:
    """Return what `make` makes of a configuration of `compose`; neither may be changed.

    Within `composing_once` checks that ask for the same thing one after another share it.
    """
    known = _made.get()
    if known is None:
        return make(config)
    kept = known.get(name)
    if kept is not None and kept[0] is config:
        return kept[1]
    found = make(config)
    known[name] = config, found
    return found


def resolved(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """Return what `resolve` makes of a configuration of `compose`; it must not be changed."""
    return made_once(config, "resolved", resolve)


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a composed configuration without the node `hydra`."""
    plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(plain, True)
    return plain


def resolve(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration as plain containers, and one problem for each value that cannot be resolved.

    A value that is not set becomes `MISSING`, one that cannot be resolved `UNRESOLVED`.
    """
    found: list[str] = []
    return _plain(config, "", found), found


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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without a full stop, a first plain word in lower case."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    first, space, rest = line.partition(" ")
    return f"{first.lower() if first.istitle() else first}{space}{rest}"
