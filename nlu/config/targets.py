"""Build the object that a configuration node with a `_target_` describes."""

import copy
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.types import TARGET, ConfigLike

_trusted = {"nlu"}
"""Packages whose classes a `_target_` may name in this process."""


def trust(config: ConfigLike) -> None:
    """Trust the packages that a user's configuration names in `trusted_packages`, and the modules of its `plugins`."""
    packages, plugins = (_texts(config.get(key)) for key in ("trusted_packages", "plugins"))
    _trusted.update([*packages, *modules_of(plugins)])


def trusted() -> list[str]:
    """Return the packages and modules that this process trusts."""
    return sorted(_trusted)


def _texts(value: object) -> list[str]:
    # This comes before values are checked.
    return [item for item in value if isinstance(item, str) and "${" not in item] if isinstance(value, list) else []


def modules_of(plugins: Sequence[str]) -> list[str]:
    """Return the modules in folders or files (mine.py) of a user's own, and make them importable in this process."""
    found: list[str] = []
    for plugin in plugins:
        path = Path(plugin).expanduser().absolute()
        is_module = path.suffix == ".py"
        folder = path.parent if is_module else path
        names = [path.stem] if is_module else [module.name for module in pkgutil.iter_modules([str(folder)])]
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        for name in names:
            spec = find_spec(name)
            if spec is not None and spec.origin and not Path(spec.origin).is_relative_to(folder):
                raise UserError(f"plugins has {plugin}, but {name} is also a module in {spec.origin}; rename yours")
        found += names
    return found


def is_trusted(target: str) -> bool:
    """Return whether the top-level package of `target` is nlu, or trusted in this process."""
    return target.partition(".")[0] in _trusted


def build(node: Mapping[str, object] | DictConfig, *runtime_args: object) -> Any:
    """Import the node's `_target_` and call it with `runtime_args` and the node's other keys as keyword arguments.

    The keyword arguments are copies, as plain containers. An argument that is itself a node is built first, without
    `runtime_args`. Raises UserError for a target that is missing, that is not trusted, or not importable.
    """
    plain: Any = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
    # A constructor may change its arguments, which must not change the configuration.
    keywords = copy.deepcopy(dict(plain))
    target = keywords.pop(TARGET, None)
    if not isinstance(target, str):
        raise UserError(f"{TARGET} is {target} but must name a class; set it to package.module.Class")
    for key, value in keywords.items():
        if isinstance(value, dict) and TARGET in value:
            keywords[key] = build(value)
    return import_target(target)(*runtime_args, **keywords)


def import_target(target: str) -> Callable[..., Any]:
    """Return the class or function with this dotted name. Raises UserError as `build` does."""
    if not is_trusted(target):
        raise UserError(untrusted(target))
    return _import(target)


def untrusted(target: str) -> str:
    """Return the problem of a target outside nlu, with rule and remedy."""
    package = target.partition(".")[0]
    return f"{target} is outside nlu; if you trust {package}, add it: trusted_packages=[{package}]"


@cache
def module_exists(name: str) -> bool:
    """Return whether there is a module of this name; its parents are imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _import(target: str) -> Callable[..., Any]:
    module_name, name = "", target
    while name and (not module_name or module_exists(f"{module_name}.{name.partition('.')[0]}")):
        first, _, name = name.partition(".")
        if not module_name and not (first.isidentifier() and not first.startswith("__") and module_exists(first)):
            raise UserError(
                f"{target}: package {first or target!r} is not installed here; install it, add its folder to "
                "PYTHONPATH, or correct the name"
            )
        module_name = f"{module_name}.{first}".lstrip(".")
    if not name:
        raise UserError(f"{target} does not name a class in a module; write package.module.Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{target} needs the package {error.name}, which is missing; install it") from error
    if not hasattr(module, name):
        first = name.partition(".")[0]
        lacking = name if hasattr(module, first) else first
        raise UserError(f"{target}: {module_name} has no {lacking}; {hint(lacking, _names_in(module))}")
    return getattr(module, name)


def _names_in(module: ModuleType) -> list[str]:
    package = module.__name__.partition(".")[0]
    own = [
        name
        for name, value in vars(module).items()
        if (isinstance(value, type) or inspect.isfunction(value)) and value.__module__.partition(".")[0] == package
    ]
    inner = [each.name for each in pkgutil.iter_modules(getattr(module, "__path__", []))]
    return [name for name in own if not name.startswith("_")] + inner
