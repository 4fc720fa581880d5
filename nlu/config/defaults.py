"""Keys that a configuration leaves out, filled in from the signatures, so that every reader finds every key."""

import ast
from collections.abc import Mapping
from typing import Any

from nlu.config.errors import UserError
from nlu.config.members import names_of
from nlu.config.signature import Signature, read_signature
from nlu.config.targets import TARGET

PLAIN_GROUPS = {
    "trainer": "nlu.config.schema.Trainer", "folds": "nlu.config.schema.Folds", "input": "nlu.config.inference.Input",
}  # fmt: skip
"""Groups without a target, and the dataclass that is their schema."""
CALLED = {"input.path": "input"}
"""Keys that messages about their values call as they are written short."""
DEFAULT_TARGETS = {"data": "nlu.data.dataset.Files"}
"""What a choice of a group is where it names no target."""


def with_targets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the targets that go without saying: a `data` that names none is rows in files."""
    named = dict(config)
    for group, target in DEFAULT_TARGETS.items():
        node = config.get(group)
        if isinstance(node, Mapping) and TARGET not in node:
            named[group] = {TARGET: target, **node}
    if names := names_of(named):
        sets = {name: named["data"]["sets"][name] for name in names}
        named["data"] = named["data"] | {
            "sets": {name: with_targets({"data": node})["data"] for name, node in sets.items()}
        }
    return named


def with_defaults(config: Mapping[str, Any], schema: str) -> dict[str, Any]:
    """Return the configuration with its targets, and the literal defaults of schema, plain groups and targets.

    What is written stays; a target that cannot be read is left as it is, for validation to refuse.
    """
    filled = _fill(with_targets(config), _literals(read_signature(schema)))
    for key, node in filled.items():
        if isinstance(node, Mapping):
            filled[key] = _fill(node, defaults_of(PLAIN_GROUPS.get(key) or node.get(TARGET)))
    return filled


def _fill(node: Mapping[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {**node, **{key: value for key, value in defaults.items() if key not in node}}


def defaults_of(target: Any) -> dict[str, Any]:
    """Return the literal defaults of a target's keys; none of what is no target, or cannot be read."""
    if not isinstance(target, str):
        return {}
    try:
        return _literals(read_signature(target))
    except UserError:
        return {}


def _literals(signature: Signature) -> dict[str, Any]:
    found = {}
    for name, parameter in signature.parameters.items():
        if parameter.value is not None:
            try:
                found[name] = ast.literal_eval(parameter.value)
            except ValueError:
                # A computed default, such as a factory, is the constructor's own business.
                continue
    return found
