"""What a configuration takes from the shipped files and from the schemas: choices of groups, and defaults."""

import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import nlu
from nlu.config.errors import UserError
from nlu.config.keys import defaults_of, facts_of, schema_of
from nlu.config.types import TARGET, Config

# Names, not classes: `--help` asks for them too, and imports no schema.
RUN = "nlu.config.schema.Run"
PREPROCESS = "nlu.config.schema.Preprocess"
EVALUATE = "nlu.config.command_keys.Evaluate"
SCHEMAS = {
    "train": RUN,
    "preprocess": PREPROCESS,
    "evaluate": EVALUATE,
    "encode": "nlu.config.command_keys.Encode",
    "export": "nlu.config.command_keys.Export",
    "predict": "nlu.config.command_keys.Predict",
    "mine": "nlu.config.command_keys.Mine",
    "serve": "nlu.config.command_keys.Serve",
    "prune": "nlu.config.command_keys.Prune",
    "profile": "nlu.config.command_keys.Profile",
    "scan": "nlu.config.command_keys.Scan",
}
"""For each command that composes a configuration, the dataclass of the top-level keys."""
PLAIN_GROUPS = {
    "trainer": "nlu.config.schema.Trainer",
    "folds": "nlu.config.schema.Folds",
    "input": "nlu.config.command_keys.Input",
}
"""Groups without a target, and the dataclass that is their schema."""


def conf_dir() -> Path:
    """Return the directory of the configuration files: inside the package when installed, beside it in a checkout."""
    package = Path(nlu.__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def find_plugins() -> None:
    """Make Hydra and the jobs it starts find the plugins of a checkout; installed plugins are found anyway."""
    plugins = Path(nlu.__file__).resolve().parents[1] / "launchers"
    if not (plugins / "hydra_plugins").is_dir():
        return
    if str(plugins) not in sys.path:
        sys.path.append(str(plugins))
    known = os.environ.get("PYTHONPATH")
    # Jobs are other processes, and inherit the environment.
    if str(plugins) not in (known or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([*([known] if known else []), str(plugins)])


@cache
def target_of(group: str, choice: str) -> str | None:
    """Return the dotted name of the class behind a shipped choice; None if the choice names none."""
    target: str | None = _file_of(group, choice).get(TARGET)
    return target


def node_of(group: str, choice: str) -> Config:
    """Return the keys of a shipped choice with their values."""
    own = _file_of(group, choice)
    # Choices of other groups.
    own.pop("defaults", None)
    node: Config = _filled(own)
    return node


def _file_of(group: str, choice: str) -> Config:
    # Read as plain YAML, since this is asked outside of Hydra too. A choice without keys is an empty file.
    return yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8")) or {}


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


def with_targets(config: Mapping[str, object]) -> Config:
    """Return the configuration in which data without a target, also those of a mixture, are rows in files."""
    named = dict(config)
    data = named.get("data")
    if isinstance(data, Mapping):
        data = named["data"] = {TARGET: target_of("data", "files"), **data}
        if constant_of(data, "has_sets") and isinstance(data.get("sets"), Mapping):
            data["sets"] = {name: with_targets({"data": node})["data"] for name, node in data["sets"].items()}
    return named


def constant_of(node: object, name: str) -> Any:
    """Return a fact of a node's target; None if it has none."""
    return facts_of(node.get(TARGET)).get(name) if isinstance(node, Mapping) else None


def with_defaults(config: Mapping[str, object], schema: str, unset: str | None = None) -> Config:
    """Return the configuration with its targets, and the defaults of the top level, of groups and of their nodes.

    Given values stay. Keys that must be set get the value `unset`, if it is given. A target that cannot be read gets no
    defaults; validation refuses it.
    """
    named = with_targets(config)
    groups: Config = {key: {} for key in schema_of(schema).keys if key in PLAIN_GROUPS}
    filled = {**_defaults(schema, unset), **groups, **named}
    return {
        key: value if key == "hydra" else _filled(value, PLAIN_GROUPS.get(key), unset) for key, value in filled.items()
    }


def _filled(value: Any, target: str | None = None, unset: str | None = None) -> Any:
    if not isinstance(value, Mapping):
        return value
    inner = {key: _filled(item, None, unset) for key, item in value.items()}
    # In the order of the schema, after the target.
    first = {TARGET: inner[TARGET]} if TARGET in inner else {}
    return {**first, **_defaults(target or value.get(TARGET), unset), **inner}


def _defaults(target: object, unset: str | None) -> Config:
    found = defaults_of(target)
    try:
        names = schema_of(target).keys if isinstance(target, str) and unset is not None else found
    except UserError:
        return found
    return {name: found.get(name, unset) for name in names}
