"""What is used of Hydra that it does not promise to keep, all of it here; read in Hydra READ_IN.

Hydra composes anew whenever it is asked: it reads each file and merges all of them, 0.15 s for nlu.train, and only then
sets what was given. One command asks several times, for a grid twice a job: what a file holds, and what files of the
same choices make together, is remembered here meanwhile. The dataclasses with which plugins say what their keys are
become configurations when one of them is chosen, not whenever Hydra starts. Where a part is gone in another version, or
takes something else, it is done without: slower, and the same. tests/config/test_hydra_private.py compares both ways.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from hydra.core.config_store import ConfigNode
from omegaconf import DictConfig, OmegaConf

from nlu.storage.redaction import hide_setting, without_secrets

READ_IN = "1.4.0rc3"
MOST_REMEMBERED = 32
"""Compositions of different choices that are kept, a few hundred kB each; the oldest goes first."""
_OF_A_DEFAULT = ("config_path", "parent", "package", "is_self", "primary", "override_key")
"""all that one entry of the list of defaults tells"""
_remembers = Lock()
"""held while Hydra is made to remember, so that what it was is put back once"""


@contextmanager
def remembering() -> Iterator[None]:
    """Have Hydra read each file of a configuration, and merge those of the same choices, once within the block.

    A file that changes meanwhile counts as it was. A block within, or beside, another one shares what that remembers.
    """
    if not _remembers.acquire(blocking=False):
        yield
        return
    owners = {name: owner for name in _PARTS if (owner := _owner_of(name)) is not None}
    before = {name: getattr(owner, name) for name, owner in owners.items()}
    # What is read is shared only where merging is known to leave it alone.
    known = before if len(before) == len(_PARTS) else {}
    try:
        for name, method in known.items():
            setattr(owners[name], name, _PARTS[name][3](method))
        yield
    finally:
        for name, method in known.items():
            setattr(owners[name], name, method)
        _remembers.release()


def hide_saved_configs() -> None:
    """Have what Hydra writes of a job's configuration (hydra.output_subdir) go through `without_secrets`, until this
    process ends. Where Hydra writes in another way, it would have to be read again: a test says so."""
    from hydra.core import utils

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


def absent() -> list[str]:
    """Return which of the parts the Hydra at hand lacks, or has with something else to take."""
    return [name for name in _PARTS if _owner_of(name) is None]


def _owner_of(name: str) -> Any:
    module, owner_name, takes, _ = _PARTS[name]
    try:
        owner = getattr(import_module(f"hydra.{module}"), owner_name, None)
    except ImportError:
        return None
    code = getattr(getattr(owner, name, None), "__code__", None)
    return owner if code is not None and code.co_varnames[: code.co_argcount] == takes else None


def _remembered_load(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return what reads a file once; nobody may change what it returns."""
    loaded: dict[Any, Any] = {}

    def load_config(self: Any, config_path: str) -> Any:
        key = (config_path, _sources(self))
        if key not in loaded:
            loaded[key] = load(self, config_path)
        return loaded[key]

    return load_config


def _remembered_merge(merge: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Return what merges the files of the same choices once; what it returns is the caller's own."""
    merged: dict[Any, DictConfig] = {}
    # A copy borrows the nodes that it reads.
    lock = RLock()

    def compose_config(self: Any, defaults: Any, repo: Any) -> DictConfig:
        key = (_sources(repo), *(tuple(getattr(one, name) for name in _OF_A_DEFAULT) for one in defaults))
        with lock:
            if key not in merged:
                if len(merged) >= MOST_REMEMBERED:
                    del merged[next(iter(merged))]
                merged[key] = merge(self, defaults, _Copies(repo, defaults))
            return deepcopy(merged[key])

    return compose_config


def _sources(repository: Any) -> tuple[Any, ...]:
    return tuple((one.scheme(), one.provider, one.path) for one in repository.get_sources())


class _Copies:
    """The files of a repository for a merge, which takes nodes at the top as its own, and copies what goes below."""

    def __init__(self, repository: Any, defaults: Any):
        self.repository = repository
        self.at_top = {one.config_path for one in defaults if not one.package}

    def load_config(self, config_path: str) -> Any:
        found = self.repository.load_config(config_path=config_path)
        if config_path in self.at_top and found is not None:
            found = copy(found)
            found.config = deepcopy(found.config)
        return found


class _Later(ConfigNode):
    """What is stored; its `node` is the dataclass until somebody asks for it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "node" and is_dataclass(given := super().__getattribute__(name)):
            self.node = OmegaConf.structured(given)
        return super().__getattribute__(name)


def _stored_later(store: Callable[..., None]) -> Callable[..., None]:
    """Return what stores a dataclass, and makes a configuration of it when that is asked for."""

    def _store(self: Any, name: str, node: Any, group: Any, package: Any, provider: Any, replace: Any) -> None:
        if not is_dataclass(node):
            return store(self, name, node, group, package, provider, replace)
        store(self, name, {}, group, package, provider, replace)
        folder = self.repo
        for part in (group or "").split("/"):
            folder = folder[part] if part else folder
        name = name if name.endswith(".yaml") else f"{name}.yaml"
        # An instance may be changed by whoever stored it.
        given = node if isinstance(node, type) else deepcopy(node)
        folder[name] = _Later(name=name, node=given, group=group or None, package=package, provider=provider)  # type: ignore[arg-type]

    return _store


_PARTS: dict[str, tuple[str, str, tuple[str, ...], Callable[..., Any]]] = {
    "load_config": (
        "_internal.config_repository", "ConfigRepository", ("self", "config_path"), _remembered_load),
    "_compose_config_from_defaults_list": (
        "_internal.config_loader_impl", "ConfigLoaderImpl", ("self", "defaults", "repo"), _remembered_merge),
    "_store": (
        "core.config_store", "ConfigStore",
        ("self", "name", "node", "group", "package", "provider", "replace"), _stored_later),
}  # fmt: skip
"""Of each method: its module and class, what it takes, and what makes another of it."""
