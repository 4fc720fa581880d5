"""Check configuration values against annotations that were read from source.

Annotations are syntax trees. In them a name from `nlu.config.types` always means that type (see
`nlu.config.signature`). An unknown name, such as a user's class, accepts anything.
"""

import ast
import math
from collections.abc import Callable, Iterable
from typing import Annotated, get_args, get_origin

from nlu.config import types
from nlu.config.durations import duration_rule, parse_duration, parse_interval, parse_warmup
from nlu.config.errors import UserError
from nlu.config.foreign import value_elsewhere
from nlu.config.nearest import nearest
from nlu.config.signature import dotted
from nlu.config.targets import TARGET
from nlu.config.types import Naming, Nested, Range, Written

_PARSERS: dict[str, Callable[[object], object]] = {
    "duration": parse_duration,
    "interval": parse_interval,
    "warmup": parse_warmup,
}
_LISTS = ("list", "List", "Sequence", "tuple", "Tuple", "set", "frozenset")
_DICTS = ("dict", "Dict", "Mapping")


def check_value(annotation: ast.expr, value: object) -> str | None:
    """Return the rule of `annotation` that `value` breaks, as "must be ..."; None if it is valid."""
    expected = _expected(annotation, value)
    return None if expected is None else f"must be {expected}"


def broken_rule(key: str, annotation: ast.expr, value: object) -> str | None:
    """Return key, value, rule and remedy if `value` breaks the rule of `annotation`; None if it is valid."""
    rule = check_value(annotation, value)
    if rule is None:
        return None
    # Some rules already end with a remedy.
    remedy = "" if "; " in rule and " write " in rule else f"; set {key} to such a value"
    if isinstance(value, str) and (close := nearest(value, rule.partition("one of ")[2].split(", "), 1)):
        remedy += f"; nearest: {close[0]}"
    if "a mapping" in rule and isinstance(value, str) and ":" in value:
        remedy = f"; shells take {{a:b,c:d}} apart, so quote the whole: '{key}={{a: b, c: d}}'"
    if " is a text, not " in rule and isinstance(value, list) and any(map(_is_float, value)):
        quoted = ", ".join(f'"{item}"' for item in value[:4]) + ", ..." * (len(value) > 4)
        remedy = f"; quote what looks like a number: '{key}=[{quoted}]'"
    if rule in ("must be a text", "must be a text or null") and isinstance(value, int | float):
        remedy = f"; quote it for the shell and for Hydra: '{key}=\"{show(value)}\"'"
    if (meant := value_elsewhere(key, value)) is not None:
        remedy = f"; {meant}"
    return f"{key} is {show(value)} but {rule}{remedy}"


def show(value: object) -> str:
    """Return `value` as in YAML, shortened to 80 characters."""
    constants: dict[object, str] = {None: "null", True: "true", False: "false"}
    is_constant = value is None or isinstance(value, bool)
    text = constants[value] if is_constant else f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _expected(annotation: ast.expr, value: object) -> str | None:
    match annotation:
        case ast.Constant(value=None):
            return None if value is None else "null"
        case ast.Constant(value=str(source)):
            return _expected(ast.parse(source, mode="eval").body, value)
        case ast.BinOp(op=ast.BitOr()):
            return _expected_of_any(_members(annotation), value)
        case ast.Subscript():
            return _expected_of_subscript(annotation, value)
        case ast.Name() | ast.Attribute():
            return _expected_of_name(_last_name(annotation), value)
    return None


def _members(annotation: ast.expr) -> list[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        return _members(annotation.left) + _members(annotation.right)
    return [annotation]


def _expected_of_any(members: list[ast.expr], value: object) -> str | None:
    expectations = [expected for member in members if (expected := _expected(member, value)) is not None]
    if len(expectations) < len(members):
        return None
    # Null comes last and before any remedy, which follows a semicolon.
    ordered = sorted(expectations, key=lambda text: text == "null")
    rules, remedies = zip(*(text.partition("; ")[::2] for text in ordered), strict=True)
    remedy = "; ".join(filter(None, remedies))
    return " or ".join(rules) + (f"; {remedy}" if remedy else "")


def _expected_of_subscript(annotation: ast.Subscript, value: object) -> str | None:
    name = _last_name(annotation.value)
    inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    if name == "Literal":
        return _expected_of_literal(inner, value)
    if name == "Optional":
        return _expected_of_any([*inner, ast.Constant(value=None)], value)
    if name == "Union":
        return _expected_of_any(inner, value)
    if name in ("Annotated", "Final"):
        return _expected(inner[0], value)
    if name in _LISTS:
        return _expected_of_list(name, inner, value)
    if name in _DICTS:
        return _expected_of_dict(inner, value)
    return None


def _expected_of_literal(inner: list[ast.expr], value: object) -> str | None:
    choices = [ast.literal_eval(choice) for choice in inner]
    # The types are compared too, because True == 1 in Python.
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return None
    return f"one of {', '.join(show(choice).strip(chr(34)) for choice in choices)}"


def _expected_of_list(name: str, inner: list[ast.expr], value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return "a list"
    is_fixed = name in ("tuple", "Tuple") and not _is_ellipsis(inner[-1])
    if is_fixed and len(value) != len(inner):
        return f"a list of {len(inner)} items"
    annotations = inner if is_fixed else [inner[0]] * len(value)
    return _expected_of_items(enumerate(value), annotations, "a list", "item")


def _expected_of_dict(inner: list[ast.expr], value: object) -> str | None:
    if not isinstance(value, dict):
        return "a mapping of keys to values"
    return _expected_of_items(value.items(), [inner[-1]] * len(value), "a mapping", "the value of")


def _expected_of_items(
    items: Iterable[tuple[object, object]], annotations: list[ast.expr], whole: str, part: str
) -> str | None:
    for (key, item), annotation in zip(items, annotations, strict=True):
        expected = _expected(annotation, item)
        if expected is not None:
            return f"{whole} of which {part} {key} is {expected}, not {show(item)}"
    return None


def _expected_of_name(name: str, value: object) -> str | None:
    if name in _PLAIN:
        accepts, expected = _PLAIN[name]
        if accepts(value):
            return None
        return "a finite number" if name == "float" and isinstance(value, float) else expected
    constrained = getattr(types, name, None)
    if get_origin(constrained) is not Annotated:
        return None
    base, *constraints = get_args(constrained)
    for constraint in constraints:
        if isinstance(constraint, Written):
            return _expected_of_written(constraint, value)
        if isinstance(constraint, Range):
            return _expected_in_range(base, constraint, value)
        if isinstance(constraint, Naming):
            return None if isinstance(value, str) else constraint.what
        if isinstance(constraint, Nested):
            return None if isinstance(value, dict) and TARGET in value else constraint.what
    return None


def _expected_of_written(constraint: Written, value: object) -> str | None:
    try:
        _PARSERS[constraint.kind](value)
    except UserError:
        return duration_rule(constraint.kind, value)
    return None


def _expected_in_range(base: type, limits: Range, value: object) -> str | None:
    expected = _expected_of_name(base.__name__, value)
    if expected is None and isinstance(value, int | float) and _is_within(limits, value):
        return None
    noun = expected or _PLAIN[base.__name__][1]
    if limits.odd:
        noun = noun.replace("an integer", "an odd integer")
    low = None if limits.min is None else f"{'>' if limits.open_min else '>='} {limits.min}"
    high = None if limits.max is None else f"{'<' if limits.open_max else '<='} {limits.max}"
    return f"{noun} {' and '.join(filter(None, [low, high]))}"


def _is_within(limits: Range, value: float) -> bool:
    above = limits.min is None or value > limits.min or (value == limits.min and not limits.open_min)
    below = limits.max is None or value < limits.max or (value == limits.max and not limits.open_max)
    return above and below and not (limits.odd and value % 2 == 0)


def _last_name(annotation: ast.expr) -> str:
    return dotted(annotation).rpartition(".")[2]


def _is_ellipsis(annotation: ast.expr) -> bool:
    return isinstance(annotation, ast.Constant) and annotation.value is Ellipsis


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


_PLAIN: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_int, "an integer"),
    "float": (_is_float, "a number"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "Path": (lambda value: isinstance(value, str), "a path"),
    **{name: (lambda value: isinstance(value, list | tuple), "a list") for name in _LISTS},
    **{name: (lambda value: isinstance(value, dict), "a mapping of keys to values") for name in _DICTS},
}
