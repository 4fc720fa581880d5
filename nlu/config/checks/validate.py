"""Check a whole configuration against the schemas of its targets, before anything is built; report all problems.

pydantic checks the values of a target's keys. A problem names the rule that a value breaks, and what to write instead.
"""

import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, Predicate

from nlu.config.checks.between_groups import cross_problems
from nlu.config.choices import EVALUATE, PLAIN_GROUPS, PREPROCESS, RUN, conf_dir, with_defaults
from nlu.config.durations import duration_rule, is_duration, is_interval, is_warmup
from nlu.config.errors import UserError
from nlu.config.foreign import hint_of_key, key_elsewhere
from nlu.config.keys import REQUIRED, Schema, schema_of
from nlu.config.nearest import nearest
from nlu.config.resolving import MISSING, UNRESOLVED
from nlu.config.targets import TARGET, is_trusted, trust, untrusted
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

CHOSEN_BY_NAME = ("data.sets", "task.tasks")
"""Keys of a mixture whose entries are choices of a group."""
_OF_A_WRONG_VALUE = (UserError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
"""What a rule may raise for a value of a wrong type or range, or for a key that is not set."""


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


def problems(config: Mapping[str, object], schema: str = RUN, with_cross_rules: bool = True) -> list[str]:
    """Return every problem of a resolved plain configuration, as full key, value, rule and remedy.

    `schema` is the dotted name of the dataclass of the top-level keys. `hydra` and values that are `UNRESOLVED` are
    skipped; `???` counts as not set. Rules between groups apply only to schemas of a run. Nothing heavy is imported.
    """
    trust(config)
    # Rules read keys without asking whether they are there, so defaults come first.
    own = with_defaults({key: value for key, value in config.items() if key != "hydra"}, schema)
    nodes = list(nodes_of(own, schema))
    found = [*_unknown(nodes, schema), *_values(nodes)]
    if schema not in (RUN, PREPROCESS, EVALUATE) or not with_cross_rules:
        return found
    refused = set(map(_key_of, found))
    try:
        # Of a value that is wrong by itself, only that is reported.
        return found + [text for text in cross_problems(own) if _key_of(text) not in refused]
    except _OF_A_WRONG_VALUE:
        # A rule may fail on a value that is already reported.
        if found:
            return found
        raise


def unknown_keys(config: Mapping[str, object], schema: str) -> list[str]:
    """Return a problem for each key that no schema has, and for each target that is not one; no value is checked."""
    return _unknown(nodes_of(config, schema), schema)


def _unknown(nodes: "Iterable[Node]", schema: str) -> list[str]:
    found, wrong, valid = [], [], []
    for node in nodes:
        if isinstance(node.schema, str):
            found.append(node.schema)
            continue
        valid += [f"{node.prefix}{name}" for name in node.schema.keys]
        for name in node.values:
            if name == TARGET or name in node.schema.keys:
                continue
            if name in node.schema.positional:
                key = f"{node.prefix}{name}"
                found.append(f"{key} cannot be set: {node.schema.target} gets it from the program; remove {key}")
            elif not node.schema.is_open:
                wrong.append(f"{node.prefix}{name}")
    return found + [f"{key}: unknown key; {hint_of_key(key, valid, schema)}" for key in wrong]


def unknown_names(config: Mapping[str, object], schema: str, names: Sequence[str]) -> list[str]:
    """Return a problem for each of these keys, which are deleted or swept, that no schema has beside other keys."""
    nodes = [(node.prefix, node.schema) for node in nodes_of(config, schema)]
    known = [
        f"{prefix}{name}" for prefix, own in nodes for name in (TARGET, *(() if isinstance(own, str) else own.keys))
    ]
    groups = {key.rpartition(".")[0] for key in known}
    wrong = [key for key in names if "." in key and key.rpartition(".")[0] in groups and key not in known]
    return [f"{key}: unknown key; {hint_of_key(key, known, schema)}" for key in wrong]


class Node(NamedTuple):
    """Keys with a schema: the top level, a group, or a choice inside a choice."""

    prefix: str
    """with which the full names of the keys begin"""
    values: Mapping[str, object]
    schema: Schema | str
    """or why its target has none"""


def nodes_of(config: Mapping[str, object], schema: str) -> Iterator[Node]:
    """Yield the configuration and each node inside it."""
    whole = schema_of(schema)
    yield Node("", config, whole)
    for key, value in config.items():
        if key in PLAIN_GROUPS and isinstance(value, Mapping):
            yield Node(f"{key}.", value, schema_of(PLAIN_GROUPS[key]))
        elif key in whole.keys and isinstance(value, Mapping) and TARGET not in value and (conf_dir() / key).is_dir():
            remedy = f"add {TARGET}: package.module.Class to the choice, or base it on one: defaults: [CHOICE, _self_]"
            yield Node(f"{key}.", value, f"{key} has no {TARGET}, which names its class; {remedy}")
        elif key in whole.keys:
            yield from _inside(key, value)


def _inside(key: str, value: object) -> Iterator[Node]:
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, Mapping):
        # An interpolation of a target that fails is reported already.
        if value.get(TARGET, UNRESOLVED) is not UNRESOLVED:
            yield Node(f"{key}.", value, _schema_or_problem(f"{key}.{TARGET}", value[TARGET]))
        items = ((f"{key}.{name}", item) for name, item in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"{key}[{number}]", item) for number, item in enumerate(value))
    for inner, item in items:
        yield from _inside(inner, item)


def _schema_or_problem(key: str, target: object) -> Schema | str:
    if not isinstance(target, str) or _is_missing(target):
        return f"{key} is {show(target)} but must name a class; set it to package.module.Class"
    if not is_trusted(target):
        return f"{key} is refused: {untrusted(target)}"
    try:
        return schema_of(target)
    except UserError as error:
        return f"{key} cannot be read: {'; '.join(error.problems)}"


def _values(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield a problem for each value that breaks the rule of its key, and for each key that is not set."""
    for prefix, node, own in nodes:
        if isinstance(own, str):
            continue
        # A node inside is checked by its own schema, and an interpolation that failed is reported already.
        given = {name: value for name, value in node.items() if value is not UNRESOLVED and not _is_missing(value)}
        checked = {name: value for name, value in given.items() if not _has_schema(f"{prefix}{name}", value)}
        yield from wrong_values(prefix, checked, own.target)
        for name, key in own.keys.items():
            if _is_missing(node.get(name, MISSING if key.default is REQUIRED else None)):
                yield _not_set(_shown(f"{prefix}{name}"), rule_of(key.annotation))


def _has_schema(key: str, value: object) -> bool:
    return isinstance(value, Mapping) and (TARGET in value or key in PLAIN_GROUPS)


def _key_of(problem: str) -> str:
    return problem.partition(" ")[0].rstrip(":")


def _not_set(key: str, rule: str) -> str:
    if key in CHOSEN_BY_NAME:
        group = key.partition(".")[0]
        return f"{key} is not set; choose one for each set, by a name of your own: +{group}@{key}.NAME=CHOICE"
    return f"{key} is not set; set it to {rule}" if rule != "anything" else f"{key} is not set; set {key}"


def _shown(key: str) -> str:
    return SHORT_FORMS.get(key, key)


def _is_missing(value: object) -> bool:
    return isinstance(value, str) and value == MISSING
