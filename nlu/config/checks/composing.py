"""Configurations as Hydra composes them; within one command each is composed once, however many checks ask for it.

What Hydra itself composes within a command, and what differs in values alone, takes an eighth of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from nlu.config.checks.resolve import resolve, without_hydra
from nlu.config.hydra_private import remembering

T = TypeVar("T")
_Known = dict[tuple[object, ...], DictConfig | Exception]
"""what was composed, with the node `hydra` or without, or was raised, by that and by all that it depends on"""
MOST_KEPT = 64
"""a search composes anew for each trial, 0.2 MB each time; the oldest goes first"""
_known: ContextVar[_Known | None] = ContextVar("compositions", default=None)
_made: ContextVar[dict[str, tuple[DictConfig, object]] | None] = ContextVar("made of the last one", default=None)
"""by name what was made of a composed configuration, and that configuration"""


@contextmanager
def composing_once() -> Iterator[None]:
    """Keep what is composed within the block, where no file of a configuration may change."""
    token, token_of_made = _known.set({}), _made.set({})
    try:
        with remembering():
            yield
    finally:
        _made.reset(token_of_made)
        _known.reset(token)


def compose(config_name: str, overrides: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """Return a configuration, which nobody may change, with the node `hydra` if asked for; raises what Hydra raises."""
    known = _known.get()
    if known is None:
        return hydra.compose(config_name, list(overrides), return_hydra_config=with_hydra)
    path = [(one.provider, one.path) for one in GlobalHydra.instance().config_loader().get_search_path().get_path()]
    key = (config_name, *overrides, *path)
    found = known.get((with_hydra, *key))
    if found is None:
        whole = known.get((True, *key))
        if isinstance(whole, DictConfig):
            found = without_hydra(whole)
        else:
            found = whole or _composed(config_name, overrides, with_hydra)
        _keep(known, (with_hydra, *key), found)
    if isinstance(found, Exception):
        raise found
    return found


def made_once(config: DictConfig, name: str, make: Callable[[DictConfig], T]) -> T:
    """Return what `make` makes of a configuration of `compose`, which nobody may change either.

    Within the block of `composing_once` it is made once for checks that ask for the same, one after the other.
    """
    known = _made.get()
    if known is None:
        return make(config)
    of, found = known.get(name, (None, None))
    if of is not config:
        found = make(config)
        known[name] = config, found
    return found  # type: ignore[return-value]


def resolved(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """Return what `resolve` makes of a configuration of `compose`; nobody may change that either."""
    return made_once(config, "resolved", resolve)


def _composed(config_name: str, overrides: Sequence[str], with_hydra: bool) -> DictConfig | Exception:
    try:
        return hydra.compose(config_name, list(overrides), return_hydra_config=with_hydra)
    except Exception as error:
        return error


def _keep(known: _Known, key: tuple[object, ...], found: DictConfig | Exception) -> None:
    while len(known) >= MOST_KEPT:
        known.pop(next(iter(known)), None)
    known[key] = found
