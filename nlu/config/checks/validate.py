"""Check a whole configuration against the signatures of its targets, before anything is built; report all problems."""

from collections.abc import Mapping

from nlu.config.checks.composing import MISSING, UNRESOLVED
from nlu.config.checks.rules import cross_problems
from nlu.config.checks.unknown import hint_of_key
from nlu.config.checks.values import broken_rule, check_value, show
from nlu.config.choices import EVALUATE, PLAIN_GROUPS, PREPROCESS, RUN, with_defaults, with_targets
from nlu.config.errors import UserError
from nlu.config.signature import Signature, read_signature
from nlu.config.targets import TARGET, is_trusted, untrusted

SHORT_FORMS = {"input.path": "input"}
"""Keys that messages about their values name by their short form."""
CHOSEN_BY_NAME = ("data.sets", "task.tasks")
"""Keys of a mixture whose entries are choices of a group."""
_OF_A_WRONG_VALUE = (UserError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
"""What a rule may raise for a value of a wrong type or range, or for a key that is not set."""
_NOTHING = object()
"""A value that no annotation allows."""


def problems(config: Mapping[str, object], schema: str = RUN, with_cross_rules: bool = True) -> list[str]:
    """Return every problem of a resolved plain configuration, as full key, value, rule and remedy.

    `schema` is the dotted name of the dataclass of the top-level keys. `hydra` and values that are `UNRESOLVED` are
    skipped; `???` counts as not set. Rules between groups apply only to schemas of a run. Nothing heavy is imported.
    """
    # Rules read keys without asking whether they are there, so defaults come first.
    own = with_defaults({key: value for key, value in config.items() if key != "hydra"}, schema)
    found = _Checker(_trusted(own), schema).top(own)
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


def known_keys(config: Mapping[str, object], schema: str = RUN) -> set[str]:
    """Return the full keys that may be set: those of `config` and of its signatures."""
    config = with_targets(config)
    keys = set(_full_keys("", config))
    for key, value in [("", config), *_mappings("", config)]:
        target = schema if key == "" else value.get(TARGET) or PLAIN_GROUPS.get(key)
        signature = _signature_or_none(target, _trusted(config))
        keys |= {_join(key, name) for name in signature.parameters} if signature else set()
    return {key for key in keys if not key.endswith(TARGET)}


class _Checker:
    """Collects the problems of one configuration."""

    def __init__(self, trusted: list[str], schema: str):
        self.trusted, self.schema = trusted, schema

    def top(self, config: Mapping[str, object]) -> list[str]:
        signature = read_signature(self.schema)
        found = self.keys("", config, signature)
        for key, value in config.items():
            if key not in signature.parameters:
                continue
            if key not in PLAIN_GROUPS:
                found += self.inside(key, value)
            elif isinstance(value, Mapping):
                found += self.keys(key, value, read_signature(PLAIN_GROUPS[key]))
        return found + [
            f"{key} is {show(config[key])} but must be a choice of its group; set {key}=NAME_OF_A_CHOICE"
            for key, parameter in signature.parameters.items()
            if parameter.required
            and check_value(parameter.annotation, _NOTHING) is None
            and _is_scalar(config.get(key, UNRESOLVED))
        ]

    def inside(self, key: str, value: object) -> list[str]:
        """Check the nodes and unset values at any depth below `key`, whose own value is already checked."""
        if isinstance(value, Mapping):
            if TARGET in value:
                return self.node(key, value)
            return [text for name, item in value.items() for text in self.item(_join(key, name), item)]
        if isinstance(value, list | tuple):
            return [text for number, item in enumerate(value) for text in self.item(f"{key}[{number}]", item)]
        return []

    def item(self, key: str, value: object) -> list[str]:
        return [f"{key} is not set; set {key}"] if _is_missing(value) else self.inside(key, value)

    def node(self, key: str, node: Mapping[str, object]) -> list[str]:
        target = node[TARGET]
        # Its interpolation is reported already.
        if target is UNRESOLVED:
            return []
        if not isinstance(target, str) or _is_missing(target):
            return [f"{key}.{TARGET} is {show(target)} but must name a class; set it to package.module.Class"]
        if not is_trusted(target, self.trusted):
            return [f"{key}.{TARGET} is refused: {untrusted(target)}"]
        try:
            signature = read_signature(target)
        except UserError as error:
            return [f"{key}.{TARGET} cannot be read: {problem}" for problem in error.problems]
        arguments = {name: value for name, value in node.items() if name != TARGET}
        found = self.keys(key, arguments, signature)
        return found + [
            text
            for name, value in arguments.items()
            if not _is_missing(value)
            for text in self.inside(_join(key, name), value)
        ]

    def keys(self, prefix: str, node: Mapping[str, object], signature: Signature) -> list[str]:
        found = []
        for name, value in node.items():
            if name not in signature.parameters:
                found += self.unknown(prefix, str(name), signature)
            # A nested node is checked by its own signature in `inside`.
            elif not (_is_missing(value) or value is UNRESOLVED or isinstance(value, Mapping) and TARGET in value):
                problem = broken_rule(_shown_key(prefix, name), signature.parameters[name].annotation, value)
                found += [problem] if problem else []
        for name, parameter in signature.parameters.items():
            value = node.get(name, MISSING if parameter.required else None)
            if _is_missing(value):
                found.append(_not_set(_shown_key(prefix, name), check_value(parameter.annotation, _NOTHING)))
        return found

    def unknown(self, prefix: str, name: str, signature: Signature) -> list[str]:
        key = _join(prefix, name)
        if name in signature.positional:
            return [f"{key} cannot be set: {name} is not a keyword-only parameter of {signature.target}; remove {key}"]
        if signature.is_open:
            return []
        valid = [_join(prefix, each) for each in signature.parameters]
        return [f"{key}: unknown key; {hint_of_key(key, valid, self.schema)}"]


def _key_of(problem: str) -> str:
    return problem.partition(" ")[0].rstrip(":")


def _not_set(key: str, rule: str | None) -> str:
    if key in CHOSEN_BY_NAME:
        group = key.partition(".")[0]
        return f"{key} is not set; choose one for each set, by a name of your own: +{group}@{key}.NAME=CHOICE"
    return f"{key} is not set; set it to {rule.removeprefix('must be ')}" if rule else f"{key} is not set; set {key}"


def _join(prefix: str, name: object) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


def _shown_key(prefix: str, name: str) -> str:
    return SHORT_FORMS.get(key := _join(prefix, name), key)


def _is_missing(value: object) -> bool:
    return isinstance(value, str) and value == MISSING


def _is_scalar(value: object) -> bool:
    return value is not UNRESOLVED and not _is_missing(value) and not isinstance(value, Mapping)


def _full_keys(prefix: str, config: Mapping[str, object]) -> list[str]:
    keys = []
    for name, value in config.items():
        key = _join(prefix, name)
        keys += [key, *(_full_keys(key, value) if isinstance(value, Mapping) else [])]
    return keys


def _mappings(prefix: str, config: Mapping[str, object]) -> list[tuple[str, Mapping[str, object]]]:
    found = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            found += [(_join(prefix, name), value), *_mappings(_join(prefix, name), value)]
    return found


def _trusted(config: Mapping[str, object]) -> list[str]:
    packages = config.get("trusted_packages")
    return packages if isinstance(packages, list) else []


def _signature_or_none(target: object, trusted: list[str]) -> Signature | None:
    try:
        return read_signature(target) if isinstance(target, str) and is_trusted(target, trusted) else None
    except UserError:
        return None
