"""What a configuration takes from the shipped files and from signatures: schemas, choices of groups, defaults."""

import ast
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import nlu
from nlu.config.errors import UserError
from nlu.config.signature import Signature, read_constants, read_signature
from nlu.config.targets import TARGET

# Names, not classes: `--help` asks for them too, and imports no schema.
RUN = "nlu.config.schema.Run"
PREPROCESS = "nlu.config.schema.Preprocess"
EVALUATE = "nlu.config.inference.Evaluate"
SCHEMAS = {
    "train": RUN, "preprocess": PREPROCESS, "evaluate": EVALUATE,
    "export": "nlu.config.inference.Export", "predict": "nlu.config.inference.Predict",
    "serve": "nlu.config.inference.Serve", "prune": "nlu.config.inference.Prune",
    "profile": "nlu.config.inference.Profile", "scan": "nlu.config.scan.Scan",
}  # fmt: skip
"""For each command that composes a configuration, the dataclass of the top-level keys."""
PLAIN_GROUPS = {
    "trainer": "nlu.config.schema.Trainer", "folds": "nlu.config.schema.Folds", "input": "nlu.config.inference.Input",
}  # fmt: skip
"""Groups without a target, and the dataclass that is their schema."""
BASES = {"data": "files"}
"""Groups whose choices may leave out `_target_`, and the shipped choice that such a choice is based on."""


def conf_dir() -> Path:
    """Return the directory of the configuration files: inside the package when installed, beside it in a checkout."""
    package = Path(nlu.__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@cache
def target_of(group: str, choice: str) -> str | None:
    """Return the dotted name of the class behind a shipped choice; None if the choice names none."""
    target: str | None = node_of(group, choice).get(TARGET)
    return target


def node_of(group: str, choice: str) -> dict[str, Any]:
    """Return the keys of a shipped choice with their values, as its file has them."""
    # Read as plain YAML, since this is asked outside of Hydra too.
    node: dict[str, Any] = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    return node


def targets_of(group: str) -> dict[str, str]:
    """Return the dotted name of the class behind each shipped choice of a group, in the order of their names."""
    names = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    return {name: target for name in names if (target := target_of(group, name)) is not None}


def choice_of(group: str, target: str) -> str:
    """Return the name of a class on the command line, or its dotted name if no shipped choice names it.

    Of several choices of a class it is the one that is called like its module, if there is one, such as textcnn.
    """
    names = [name for name, each in targets_of(group).items() if each == target]
    module = target.rpartition(".")[0].rpartition(".")[2]
    return module if module in names else names[0] if names else target


def with_targets(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration with the target of each choice that leaves it out (see `BASES`)."""
    named = dict(config)
    for group, choice in BASES.items():
        node = config.get(group)
        if isinstance(node, Mapping) and TARGET not in node:
            named[group] = {TARGET: target_of(group, choice), **node}
    data: Any = named.get("data")
    # Each set of a mixture is a choice of the group data too.
    if constant_of(data, "has_sets") and isinstance(data.get("sets"), Mapping):
        sets = {name: with_targets({"data": node})["data"] for name, node in data["sets"].items()}
        named["data"] = {**data, "sets": sets}
    return named


def constant_of(node: object, name: str) -> Any:
    """Return a class constant of a node's target; None if it has none or cannot be read."""
    try:
        return read_constants(node[TARGET]).get(name) if isinstance(node, Mapping) else None
    except (UserError, KeyError, TypeError, AttributeError):
        # Validation reports what is wrong with a target.
        return None


def with_defaults(config: Mapping[str, object], schema: str) -> dict[str, Any]:
    """Return the configuration with its targets, and the literal defaults of schema, plain groups and targets.

    Given values stay. A target that cannot be read gets no defaults; validation refuses it.
    """
    filled = _filled(with_targets(config), _literals(read_signature(schema)))
    for key, node in filled.items():
        if isinstance(node, Mapping):
            filled[key] = _filled(node, defaults_of(PLAIN_GROUPS.get(key) or node.get(TARGET)))
    return filled


def defaults_of(target: object) -> dict[str, object]:
    """Return the literal defaults of a target's keys; {} if they cannot be read."""
    try:
        return _literals(read_signature(target)) if isinstance(target, str) else {}
    except UserError:
        return {}


def _filled(node: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, Any]:
    return {**node, **{key: value for key, value in defaults.items() if key not in node}}


def _literals(signature: Signature) -> dict[str, object]:
    found = {}
    for name, parameter in signature.parameters.items():
        # Only the constructor can compute the others, such as those of a factory.
        with suppress(ValueError):
            # literal_eval raises ValueError for any default but a literal.
            if parameter.value is not None:
                found[name] = ast.literal_eval(parameter.value)
    return found
