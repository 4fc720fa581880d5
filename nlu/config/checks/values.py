"""Check the values of a target's keys with pydantic, and say which rule a value breaks, and what to write instead."""

import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, Predicate

from nlu.config.durations import duration_rule, is_duration, is_interval, is_warmup
from nlu.config.foreign import key_elsewhere
from nlu.config.keys import schema_of
from nlu.config.nearest import nearest
from nlu.config.types import Naming, is_odd

if TYPE_CHECKING:
    from pydantic import BaseModel, ConfigDict

SHORT_FORMS = {"input.path": "input"}
"""Keys that messages about their values name by their short form."""
_NOUNS: dict[object, str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "null", None: "null",
    **dict.fromkeys((list, tuple, set, frozenset), "a list"), **dict.fromkeys((dict,), "a mapping of keys to values"),
}  # fmt: skip
_BOUNDS = {Ge: ">= {.ge}", Gt: "> {.gt}", Le: "<= {.le}", Lt: "< {.lt}"}
_CONFIG: "ConfigDict" = {"strict": True, "allow_inf_nan": False, "arbitrary_types_allowed": True}
"""pydantic's: a text is no number, and a number is finite."""
_NUMBER = r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|true|false"
_OF_NUMBERS = ("must be an integer", "must be a number", "must be an odd integer", "must be true or false")
_WRITTEN = {is_duration: "duration", is_interval: "interval", is_warmup: "warmup"}


def wrong_values(prefix: str, values: Mapping[str, object], target: str) -> list[str]:
    """Return key, value, rule and remedy of each of these values of a target's keys that breaks the rule of its key."""
    # Imported late, since commands that only show something check no values.
    from pydantic import ValidationError

    keys = schema_of(target).keys
    known = {name: value for name, value in values.items() if name in keys}
    try:
        _model(target).model_validate(known)
    except ValidationError as error:
        places: dict[str, list[int | str]] = {}
        for each in error.errors(include_url=False, include_context=False, include_input=False):
            name = str(each["loc"][0])
            place = _place(known[name], each["loc"][1:])
            # Of a union each member has an error of its own; the one furthest inside names the item that is wrong.
            places[name] = max(places.get(name, []), place, key=len)
        return [broken_rule(f"{prefix}{name}", keys[name].annotation, known[name], places[name]) for name in places]
    return []


def value_problem(key: str, annotation: object, value: object) -> str | None:
    """Return key, value, rule and remedy if a value breaks the rule of a type; None if it is valid."""
    return None if _fits(annotation, value) else broken_rule(key, annotation, value)


def _fits(annotation: Any, value: object) -> bool:
    from pydantic import TypeAdapter, ValidationError

    try:
        # In a list, since pydantic refuses a configuration for a type that has one of its own.
        TypeAdapter(list[annotation], config=_CONFIG).validate_python([value])
    except ValidationError:
        return False
    return True


@cache
def _model(target: str) -> "type[BaseModel]":
    from pydantic import Field, create_model

    # By alias, since pydantic reserves some names. That a key is missing is reported elsewhere.
    keys = schema_of(target).keys.values()
    fields: Any = {
        f"key_{number}": (key.annotation, Field(alias=key.name, default=None)) for number, key in enumerate(keys)
    }
    return create_model("Keys", __config__=_CONFIG, **fields)


def _place(value: Any, location: Sequence[Any]) -> list[int | str]:
    """Return the part of pydantic's location that leads into a value; the rest names members of unions."""
    place: list[int | str] = []
    for part in location:
        if (isinstance(value, list) and isinstance(part, int)) or (isinstance(value, dict) and part in value):
            place, value = [*place, part], value[part]
    return place


def rule_of(annotation: object, value: object = None) -> str:
    """Return a type in words, such as `an integer >= 1 or null`; of a duration the words depend on the value."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return "anything"
    if origin is Annotated:
        return _annotated(inner[0], inner[1:], value)
    if origin is Literal:
        return f"{'one of ' * (len(inner) > 1)}{', '.join(show(choice).strip(chr(34)) for choice in inner)}"
    if origin in (typing.Union, types.UnionType):
        # Null comes last and before any remedy, which follows a semicolon.
        rules = sorted((_member(each, inner, value) for each in inner), key=lambda text: text == "null")
        heads, _, remedies = zip(*(text.partition("; ") for text in rules), strict=True)
        return "; ".join(filter(None, [" or ".join(heads), *remedies]))
    if origin in (list, set, frozenset, tuple, Sequence) or getattr(origin, "__name__", "") == "Sequence":
        return f"a list, each item {rule_of(inner[0])}"
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return f"a mapping, each value {rule_of(inner[-1])}"
    return _NOUNS.get(annotation) or f"a {getattr(annotation, '__name__', annotation)}"


def _member(annotation: object, union: tuple[object, ...], value: object) -> str:
    """Return a member of a union in words; a long rule of items that is that of another member is not said twice."""
    items = get_args(annotation)[0] if get_origin(annotation) is list else None
    is_said = items in union and get_origin(items) in (Annotated, Literal)
    return "a list" if is_said else rule_of(annotation, value)


def _annotated(base: object, constraints: tuple[object, ...], value: object) -> str:
    text, bounds = rule_of(base, value), []
    for each in constraints:
        if isinstance(each, Naming):
            return each.what
        if isinstance(each, Predicate) and each.func in _WRITTEN:
            return duration_rule(_WRITTEN[each.func], value)
        if isinstance(each, Predicate) and each.func is is_odd:
            text = text.replace("an integer", "an odd integer")
        if isinstance(each, Len):
            text = text.replace("a list", f"a list of {each.min_length} items")
        if type(each) in _BOUNDS:
            bounds.append(_BOUNDS[type(each)].format(each))
    return " ".join(filter(None, [text, " and ".join(bounds)]))


def broken_rule(key: str, annotation: object, value: object, place: Sequence[int | str] = ()) -> str:
    """Return key, value, rule and remedy of a value that does not fit; `place` leads to its wrong item."""
    rule, key = f"must be {rule_of(annotation, value)}", SHORT_FORMS.get(key, key)
    item: Any = value
    for part in place:
        item = item[part]
    if place:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        rule = f"{rule}, and {key}{path} is {show(item)}"
    return f"{key} is {show(value)} but {rule}{_remedy(key, rule, value)}"


def _remedy(key: str, rule: str, value: object) -> str:
    if isinstance(value, str) and (meant := key_elsewhere(f"{key}={value}")) is not None:
        return f"; {meant}"
    if rule in ("must be a text", "must be a text or null") and isinstance(value, int | float):
        return f"; quote it for the shell and for Hydra: '{key}=\"{show(value)}\"'"
    if "each item a text" in rule and isinstance(value, list) and any(isinstance(item, int | float) for item in value):
        quoted = ", ".join(f'"{item}"' for item in value[:4]) + ", ..." * (len(value) > 4)
        return f"; quote what looks like a number: '{key}=[{quoted}]'"
    if "a mapping" in rule and isinstance(value, str) and ":" in value:
        return f"; shells take {{a:b,c:d}} apart, so quote the whole: '{key}={{a: b, c: d}}'"
    if isinstance(value, str) and re.fullmatch(_NUMBER, value) and rule.startswith(_OF_NUMBERS):
        return f"; write {value} without quotes, or that of a variable as '{key}=\"${{oc.decode:${{oc.env:NAME}}}}\"'"
    # Some rules already end with a remedy.
    remedy = "" if "; " in rule and " write " in rule else f"; set {key} to such a value"
    choices = rule.partition("one of ")[2].split(" or ")[0].split(", ")
    if isinstance(value, str) and (close := nearest(value, choices, 1)):
        remedy += f"; nearest: {close[0]}"
    return remedy


def show(value: object) -> str:
    """Return `value` as in YAML, shortened to 80 characters."""
    constants: dict[object, str] = {None: "null", True: "true", False: "false"}
    is_constant = value is None or isinstance(value, bool)
    text = constants[value] if is_constant else f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
