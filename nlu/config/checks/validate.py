"""Check a whole configuration against the schemas of its targets, before anything is built; report all problems."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nlu.config.checks.rules import cross_problems
from nlu.config.checks.values import SHORT_FORMS, rule_of, show, wrong_values
from nlu.config.choices import EVALUATE, PLAIN_GROUPS, PREPROCESS, RUN, conf_dir, with_defaults
from nlu.config.errors import UserError
from nlu.config.foreign import hint_of_key
from nlu.config.keys import REQUIRED, Schema, schema_of
from nlu.config.resolving import MISSING, UNRESOLVED
from nlu.config.targets import TARGET, is_trusted, trust, untrusted

CHOSEN_BY_NAME = ("data.sets", "task.tasks")
"""Keys of a mixture whose entries are choices of a group."""
_OF_A_WRONG_VALUE = (UserError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
"""What a rule may raise for a value of a wrong type or range, or for a key that is not set."""


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
