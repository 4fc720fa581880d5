"""Read constructor signatures from source, without importing.

The keyword-only parameters of a target are the schema of its configuration. They are read from the syntax tree, so a
wrong key or value is refused before torch or another heavy package is imported.
"""

import ast
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Annotated, Any, get_origin

from nlu.config import types
from nlu.config.errors import UserError
from nlu.config.nearest import hint

ANY = ast.Name(id="Any", ctx=ast.Load())
_TYPES = {name for name, value in vars(types).items() if get_origin(value) is Annotated}
_IMPORT_HOPS_MAX = 8
_FUNCTIONS = re.compile(
    r"^(?P<indent>(?: {4})?)(?:@.*\n(?P=indent))*(?:async )?def (?!__init__\b).*\n(?:(?:(?P=indent)[ )].*)?\n)*",
    re.MULTILINE,
)
"""A function or method with its decorators: the first line, then blank lines and lines with more indentation."""
_CONSTRUCTORS = re.compile(
    r"^(?P<head> {4}def __init__\((?:.*|\n(?: {8}.*\n)* {4}\)).*:\n)(?:(?: {8}.*)?\n)*", re.MULTILINE
)
"""A constructor: its parameters, on one or several lines, then its body."""

Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Parameter:
    """One keyword-only parameter."""

    name: str
    annotation: ast.expr
    value: ast.expr | None
    """the default, None if it is required"""

    @property
    def required(self) -> bool:
        return self.value is None

    @property
    def default(self) -> str | None:
        """The source text of the default."""
        return None if self.value is None else ast.unparse(self.value)


@dataclass(frozen=True)
class Signature:
    """The arguments of a target: `parameters` from the configuration, `positional` from the program at run time.

    `is_open`: the target also takes other keywords (`**kwargs`), so unknown keys cannot be refused.
    """

    target: str
    doc: str
    parameters: dict[str, Parameter]
    positional: tuple[str, ...] = ()
    is_open: bool = False


@cache
def read_signature(target: str) -> Signature:
    """Return the signature of the class or function with dotted name `target`.

    Reads `__init__` (its own, or that of a base in the same package or in nlu), dataclass fields, or a function.
    Nothing is imported or executed. Raises UserError with near names if the module or the name does not exist.
    """
    module, definition = _locate(target, _IMPORT_HOPS_MAX)
    if isinstance(definition, ast.FunctionDef):
        return _of_function(target, module, definition)
    return _of_class(target, module, definition)


@cache
def read_constants(target: str) -> dict[str, Any]:
    """Return the literal class attributes of `target`, with those of its bases in the same package or in nlu.

    They tell the layouts and metrics of a task, for instance, without an import. Nothing is imported or executed.
    """
    module, definition = _locate(target, _IMPORT_HOPS_MAX)
    constants: dict[str, Any] = {}
    if isinstance(definition, ast.FunctionDef):
        return constants
    for base in _base_targets(target, module, definition):
        with suppress(UserError):
            constants |= read_constants(base)
    for node in definition.body:
        name = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(name, ast.Name) and node.value is not None:
            with suppress(ValueError):
                constants[name.id] = ast.literal_eval(node.value)
    return constants


def _of_function(target: str, module: "_Module", function: ast.FunctionDef) -> Signature:
    arguments = function.args
    parameters = {
        argument.arg: _parameter(argument.arg, argument.annotation, default, module)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    positional = tuple(argument.arg for argument in [*arguments.posonlyargs, *arguments.args])
    return Signature(target, _doc(function), parameters, positional, is_open=arguments.kwarg is not None)


def _of_class(target: str, module: "_Module", definition: ast.ClassDef) -> Signature:
    constructor = next(
        (node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None
    )
    base = _base_signature(target, module, definition)
    doc = _doc(definition) or (_doc(constructor) if constructor else "")
    if constructor is not None:
        own = _of_function(target, module, constructor)
        # Without **kwargs, the keywords of the base cannot be passed.
        if not own.is_open or base is None:
            return Signature(target, doc, own.parameters, own.positional[1:], own.is_open)
        # Assumes that **kwargs are passed on to the base.
        return Signature(target, doc, {**base.parameters, **own.parameters}, own.positional[1:], base.is_open)
    inherited = base.parameters if base else {}
    if _is_dataclass(definition):
        positional, parameters = _fields(module, definition)
        return Signature(target, doc, {**inherited, **parameters}, positional)
    return Signature(target, doc, inherited, base.positional if base else (), base.is_open if base else False)


def _base_signature(target: str, module: "_Module", definition: ast.ClassDef) -> Signature | None:
    for full_name in _base_targets(target, module, definition):
        try:
            return read_signature(full_name)
        except UserError:
            # A base that is computed, or imported with a star, cannot be read. It may take any keyword.
            return Signature(full_name, "", {}, is_open=True)
    return None


def _base_targets(target: str, module: "_Module", definition: ast.ClassDef) -> Iterator[str]:
    # Bases from other distributions are skipped: to find their constructors, all of torch would be read, for instance.
    readable = {"nlu", target.partition(".")[0]}
    for base in definition.bases:
        full_name = module.full_name(dotted(base))
        if full_name is not None and full_name.partition(".")[0] in readable:
            yield full_name


def _fields(module: "_Module", definition: ast.ClassDef) -> tuple[tuple[str, ...], dict[str, Parameter]]:
    positional: tuple[str, ...] = ()
    parameters: dict[str, Parameter] = {}
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = dotted(node.annotation).rpartition(".")[2]
        # Fields before the mark are positional, those after it are keys.
        if kind == "KW_ONLY":
            positional, parameters = tuple(parameters), {}
        elif kind != "ClassVar" and not _is_set_later(node.value):
            name = node.target.id
            parameters[name] = _parameter(name, node.annotation, _field_default(node.value), module)
    return positional, parameters


def _field_options(value: ast.expr | None) -> dict[str, ast.expr] | None:
    if isinstance(value, ast.Call) and dotted(value.func) in ("field", "dataclasses.field"):
        return {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}
    return None


def _is_set_later(value: ast.expr | None) -> bool:
    is_init = (_field_options(value) or {}).get("init")
    return isinstance(is_init, ast.Constant) and is_init.value is False


def _field_default(value: ast.expr | None) -> ast.expr | None:
    options = _field_options(value)
    if options is None:
        return value
    factory = options.get("default_factory")
    return ast.Call(func=factory, args=[], keywords=[]) if factory is not None else options.get("default")


def _parameter(name: str, annotation: ast.expr | None, default: ast.expr | None, module: "_Module") -> Parameter:
    return Parameter(name, ANY if annotation is None else _WithoutNamesakes(module).visit(annotation), default)


class _WithoutNamesakes(ast.NodeTransformer):
    """Replaces types that only have the name of one in `nlu.config.types`, such as a user's own, by Any."""

    def __init__(self, module: "_Module"):
        self.module = module

    def visit_Name(self, node: ast.Name | ast.Attribute) -> ast.expr:
        name = dotted(node)
        last = name.rpartition(".")[2]
        return ANY if last in _TYPES and self.module.full_name(name) != f"{types.__name__}.{last}" else node

    visit_Attribute = visit_Name

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        with suppress(SyntaxError):
            if isinstance(node.value, str):
                inner: ast.expr = self.visit(ast.parse(node.value, mode="eval").body)
                return inner
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node if dotted(node).rpartition(".")[2] == "Literal" else self.generic_visit(node)


def _is_dataclass(definition: ast.ClassDef) -> bool:
    names = (dotted(node.func if isinstance(node, ast.Call) else node) for node in definition.decorator_list)
    return any(name in ("dataclass", "dataclasses.dataclass") for name in names)


def dotted(expression: ast.expr) -> str:
    """Return the dotted name of an expression, without subscripts; "" if it is computed."""
    match expression:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name) if before := dotted(owner):
            return f"{before}.{name}"
        case ast.Subscript(value=owner):
            return dotted(owner)
    return ""


def _doc(definition: Definition) -> str:
    return (ast.get_docstring(definition) or "").partition("\n\n")[0]


@dataclass(frozen=True)
class _Module:
    name: str
    package: str
    definitions: dict[str, Definition]
    imported: dict[str, str]

    def full_name(self, dotted: str) -> str | None:
        """Return the absolute name of a name in this module; None if it is a builtin or computed."""
        first, _, rest = dotted.partition(".")
        if first in self.definitions and first not in self.imported:
            return f"{self.name}.{dotted}"
        origin = self.imported.get(first)
        return None if origin is None else ".".join(filter(None, [origin, rest]))


def _locate(target: str, hops: int) -> tuple[_Module, Definition]:
    module_name, spec = _longest_module(target)
    name = target[len(module_name) + 1 :]
    if spec is None or not name:
        raise UserError(f"{target} does not name a class in a module; write package.module.Class")
    # The short source first. Its regular expressions rely on the layout of nlu's own files; other code is parsed in
    # full.
    for in_full in (False, True) if module_name.startswith("nlu.") else (True,):
        module = _read_module(module_name, spec, in_full)
        if name in module.definitions:
            return module, module.definitions[name]
        if (origin := module.full_name(name)) is not None:
            break
    # The limit ends circular imports of names.
    if origin is None or hops == 0:
        raise UserError(_not_found(target, module, spec))
    return _locate(origin, hops - 1)


def _not_found(target: str, module: _Module, spec: ModuleSpec) -> str:
    own_package = f"{module.name.partition('.')[0]}."
    imported = [name for name, origin in module.imported.items() if origin.startswith(own_package)]
    names = [name for name in [*module.definitions, *imported] if not name.startswith("_")]
    names += [found.name for found in pkgutil.iter_modules(spec.submodule_search_locations or [])]
    missing = target[len(module.name) + 1 :].partition(".")[0]
    return f"{target}: {module.name} has no {missing}; {hint(missing, names)}"


def _longest_module(target: str) -> tuple[str, ModuleSpec | None]:
    first, *parts = target.split(".")
    # find_spec fails for a dunder such as __main__.
    is_package_name = first.isidentifier() and not first.startswith("__")
    spec = importlib.util.find_spec(first) if is_package_name else None
    if spec is None:
        raise UserError(
            f"{target}: package {first or target!r} is not installed here; install it, add its folder to PYTHONPATH, "
            "or correct the name"
        )
    name = first
    # The longest prefix that is a module counts; the rest of the name is a class, perhaps a nested one.
    for part in parts:
        found = _found_in(tuple(spec.submodule_search_locations or ()), name, part)
        if found is None:
            break
        name, spec = f"{name}.{part}", found
    return name, spec


@cache
def _found_in(folders: tuple[str, ...], package: str, part: str) -> ModuleSpec | None:
    name = f"{package}.{part}"
    try:
        # PathFinder, unlike importlib.util.find_spec, does not import the parent packages.
        return PathFinder.find_spec(name, list(folders))
    except KeyError:
        # For a folder without __init__.py it needs the imported parent package.
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(path) for folder in folders if (path := Path(folder, part)).is_dir()]
        return spec


@cache
def _read_source(path: str, in_full: bool) -> ast.Module:
    try:
        text = Path(path).read_text(encoding="utf-8")
        return ast.parse(text if in_full else without_functions(text))
    except SyntaxError as error:
        if not in_full:
            return _read_source(path, in_full=True)
        raise UserError(f"{path}:{error.lineno} is not valid Python: {error.msg}; correct it") from error


def without_functions(text: str) -> str:
    """Return the source of a module of nlu without functions, methods and the bodies of constructors.

    Parsing these takes most of the time, and keys do not depend on them. A test compares the signatures with those of
    the full source of each module.
    """
    return _CONSTRUCTORS.sub(rf"\g<head>{' ' * 8}pass\n", _FUNCTIONS.sub(r"\g<indent>pass\n", text))


def _read_module(name: str, spec: ModuleSpec, in_full: bool) -> _Module:
    has_source = spec.origin is not None and spec.origin.endswith(".py")
    tree = _read_source(spec.origin, in_full) if has_source else ast.Module(body=[], type_ignores=[])
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    definitions: dict[str, Definition] = {}
    imported: dict[str, str] = {}
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            source = _import_source(node, package)
            imported.update({alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                imported[alias.asname or first] = alias.name if alias.asname else first
    return _Module(name, package, definitions, imported)


def _import_source(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, *filter(None, [node.module])])


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        # For definitions and imports under `if TYPE_CHECKING` or in `try`.
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node.body + node.orelse)
        else:
            yield node
