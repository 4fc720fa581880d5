"""Build the object that a configuration node with a `_target_` describes."""

import copy
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nlu.config.errors import UserError
from nlu.config.types import TARGET

_trusted = {"nlu"}
"""Packages whose classes a `_target_` may name in this process."""


def trust(config: Mapping[str, Any]) -> None:
    """Trust the packages that a user's configuration names in `trusted_packages`, and the modules of its `plugins`."""
    packages, plugins = config.get("trusted_packages"), config.get("plugins")
    _trusted.update(packages if isinstance(packages, list) else [])
    _trusted.update(modules_of(plugins if isinstance(plugins, list) else []))


def modules_of(plugins: Sequence[str]) -> list[str]:
    """Return the modules in folders or files (mine.py) of a user's own, and make them importable in this process."""
    found: list[str] = []
    for plugin in plugins:
        path = Path(str(plugin)).expanduser().absolute()
        folder = path.parent if path.suffix == ".py" else path
        found += (
            [path.stem] if path.suffix == ".py" else [module.name for module in pkgutil.iter_modules([str(folder)])]
        )
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return found


def is_trusted(target: str, trusted: Sequence[str] = ()) -> bool:
    """Return whether the top-level package of `target` is nlu, one of `trusted`, or trusted in this process."""
    return target.partition(".")[0] in (*_trusted, *trusted)


def build(node: Mapping[str, object] | DictConfig, *runtime_args: object, trusted: Sequence[str] = ()) -> Any:
    """Import the node's `_target_` and call it with `runtime_args` and the node's other keys as keyword arguments.

    The keyword arguments are copies, as plain containers. An argument that is itself a node is built first, without
    `runtime_args`. Raises UserError for a target that is missing, outside nlu and `trusted`, or not importable.
    """
    plain: Any = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    # A constructor may change its arguments, which must not change the configuration.
    keywords = copy.deepcopy(dict(plain))
    target = keywords.pop(TARGET, None)
    if not isinstance(target, str):
        raise UserError(f"{TARGET} is {target} but must name a class; set it to package.module.Class")
    for key, value in keywords.items():
        if isinstance(value, dict) and TARGET in value:
            keywords[key] = build(value, trusted=trusted)
    return import_target(target, trusted)(*runtime_args, **keywords)


def import_target(target: str, trusted: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the class or function with this dotted name. Raises UserError as `build` does."""
    if not is_trusted(target, trusted):
        raise UserError(untrusted(target))
    return _import(target)


def untrusted(target: str) -> str:
    """Return the problem of a target outside nlu, with rule and remedy."""
    package = target.partition(".")[0]
    return f"{target} is outside nlu; if you trust {package}, add it: trusted_packages=[{package}]"


def _import(target: str) -> Callable[..., Any]:
    module_name, _, name = target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Either the target itself is missing, or a package that its module imports; the remedies differ.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"{target}: module {error.name} does not exist; correct _target_") from error
        raise UserError(f"{target} needs the package {error.name}, which is missing; install it") from error
    if not hasattr(module, name):
        raise UserError(f"{target}: {module_name} has no {name}; correct _target_")
    return getattr(module, name)
