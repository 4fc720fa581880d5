"""The keys of every choice, with types, ranges, defaults and meanings, without importing what they configure.

A class of nlu has its keys in a dataclass of its name in the module `keys` of its package: those of
`nlu.losses.focal.Focal` are the fields of `nlu.losses.keys.Focal`, and the text under a field is its meaning. Other
class attributes of the dataclass are facts that rules between groups need, such as the losses that fit a task. These
modules import nothing heavy. The class itself gets the dataclass through `takes`.

Any other class, such as a user's own, has the keyword-only parameters of its constructor as keys, read by `inspect`.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, get_type_hints

from nlu.config.errors import UserError
from nlu.config.targets import import_target, is_trusted, module_exists, untrusted
from nlu.config.types import Config, ConfigLike

REQUIRED = dataclasses.MISSING
"""The default of a key that must be set."""
T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Key:
    """One key: `annotation` is its type, and `default` its value if it is not set, or `REQUIRED`."""

    name: str
    annotation: object
    default: object


@dataclass(frozen=True)
class Schema:
    """The keys of a target, and the facts that rules between groups need.

    `is_open`: the target takes other keywords too, so unknown keys cannot be refused. `positional`: parameters that the
    program passes, which a configuration cannot set.
    """

    target: str
    keys: Mapping[str, Key]
    constants: ConfigLike
    is_open: bool = False
    positional: tuple[str, ...] = ()
    described_by: type | None = field(default=None, compare=False)

    @property
    def defaults(self) -> Config:
        """The values of all keys that need not be set; lists and mappings are copies, which the caller may change."""
        return {name: deepcopy(key.default) for name, key in self.keys.items() if key.default is not REQUIRED}

    @property
    def help(self) -> dict[str, str]:
        """The meaning of each key, "" where none is written."""
        texts: dict[str, str] = {}
        for each in reversed(self.described_by.__mro__ if self.described_by else ()):
            texts |= _texts_of(each.__module__).get(each.__name__, {})
        return {name: texts.get(name, "") for name in self.keys}


@cache
def schema_of(target: str) -> Schema:
    """Return the schema of the class or function with dotted name `target`.

    Raises UserError with near names if it does not exist, and for a package outside nlu that is not trusted: a class
    of a user's own is imported.
    """
    if not is_trusted(target):
        raise UserError(untrusted(target))
    first, _, rest = target.partition(".")
    if first == "nlu" and "." in rest:
        module, _, name = target.rpartition(".")
        keys = module if rest.startswith("config.") else f"nlu.{rest.partition('.')[0]}.keys"
        described = getattr(importlib.import_module(keys), name, None) if module_exists(keys) else None
        if isinstance(described, type) and module_exists(module):
            return _of_dataclass(target, described)
    try:
        return _of_signature(target, import_target(target))
    except SyntaxError as error:
        raise UserError(f"{error.filename}:{error.lineno} is not valid Python: {error.msg}; correct it") from error


def facts_of(target: object) -> ConfigLike:
    """Return the facts of a target that rules between groups need; {} if it cannot be read, which is reported."""
    try:
        return schema_of(target).constants if isinstance(target, str) else {}
    except UserError:
        return {}


def target_for(task: ConfigLike, loss: ConfigLike) -> object:
    """Return the dotted name of the target of a task with a loss, both given by their facts; None if it has none.

    It is the task's own, or one of its `other_targets` if a loss over vectors of texts accepts only that kind.
    """
    own, kinds = task.get("target"), loss.get("kinds") or ()
    if loss.get("reads", "logits") == "logits" or facts_of(own).get("kind") in kinds:
        return own
    return next((other for kind, other in task.get("other_targets", {}).items() if kind in kinds), own)


def defaults_of(target: object) -> Config:
    """Return the defaults of a target's keys; {} if it cannot be read."""
    try:
        return schema_of(target).defaults if isinstance(target, str) else {}
    except UserError:
        return {}


def takes(keys: type) -> Callable[[T], T]:
    """Make a class take the fields of the dataclass `keys` as keyword arguments, and have its other attributes.

    The constructor gets one object of the dataclass, after the arguments of the program: `Focal(gamma=1)` calls
    `__init__(self, keys)`. A dataclass without fields is not passed.
    """
    names = {each.name for each in dataclasses.fields(keys)}

    def decorate(cls: T) -> T:
        init: Any = getattr(cls.__init__, "__wrapped__", cls.__init__)  # type: ignore[misc]

        @functools.wraps(init)
        def with_keys(self: object, *args: object, **values: object) -> None:
            # A derived class may pass on the object that it got.
            if not names or (args and isinstance(args[-1], keys)):
                init(self, *args, **values)
            else:
                own = {name: values.pop(name) for name in names & set(values)}
                init(self, *args, keys(**own), **values)

        cls.__init__ = with_keys  # type: ignore[misc]
        for name, value in _facts(keys).items():
            setattr(cls, name, value)
        cls.keys_of_class = keys  # type: ignore[attr-defined]
        return cls

    return decorate


def _of_dataclass(target: str, described: type) -> Schema:
    hints = get_type_hints(described, include_extras=True)
    keys = {
        each.name: Key(each.name, hints[each.name], _default(each))
        for each in dataclasses.fields(described)
        if each.init
    }
    return Schema(target, keys, _facts(described), described_by=described)


def _default(each: "dataclasses.Field[object]") -> object:
    return each.default if each.default_factory is dataclasses.MISSING else each.default_factory()


def _facts(described: type) -> Config:
    names = {each.name for each in dataclasses.fields(described)}
    bases = [base for base in reversed(described.__mro__) if base is not object]
    found = {name: value for base in bases for name, value in vars(base).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if name not in names and not _is_code(value)}


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod | functools.cached_property)


def _of_signature(target: str, found: Callable[..., object]) -> Schema:
    if dataclasses.is_dataclass(found) and isinstance(found, type):
        return _of_dataclass(target, found)
    described = getattr(found, "keys_of_class", None)
    own = _parameters(found)
    keys = {
        name: Key(name, _annotation(found, each), REQUIRED if each.default is each.empty else each.default)
        for name, each in own.items()
        if each.kind is each.KEYWORD_ONLY
    }
    is_open = any(each.kind is each.VAR_KEYWORD for each in own.values())
    # A class that passes further keywords on to a class of nlu has the keys of both.
    if described is not None and (is_open or "keys" in own):
        keys, is_open = {**_of_dataclass(target, described).keys, **keys}, False
    positional = tuple(name for name, each in own.items() if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD))
    names = dir(found) if isinstance(found, type) else ()
    constants = {name: getattr(found, name) for name in names if not name.startswith("_")}
    constants = {name: value for name, value in constants.items() if not _is_code(value)}
    return Schema(target, keys, constants, is_open, positional, described)


def _parameters(found: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return {"keywords": inspect.Parameter("keywords", inspect.Parameter.VAR_KEYWORD)}


def _annotation(found: Callable[..., object], parameter: inspect.Parameter) -> object:
    """Return the type of a parameter; Any if there is none, or none that can be read here."""
    if parameter.annotation is parameter.empty:
        return Any
    try:
        called = inspect.getattr_static(found, "__init__") if isinstance(found, type) else found
        return get_type_hints(called, include_extras=True)[parameter.name]
    except (NameError, KeyError, TypeError, AttributeError):
        return Any


@cache
def _texts_of(module_name: str) -> dict[str, dict[str, str]]:
    """Return the text under each field of each class of a module, on one line."""
    if module_name in ("builtins", "typing"):
        return {}
    body = ast.parse(inspect.getsource(importlib.import_module(module_name))).body
    found: dict[str, dict[str, str]] = {}
    for each in body:
        if isinstance(each, ast.ClassDef):
            pairs = zip(each.body, each.body[1:], strict=False)
            found[each.name] = {
                one.target.id: " ".join(after.value.value.split())
                for one, after in pairs
                if isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            }
    return found
