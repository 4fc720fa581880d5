"""What `--help` prints, and docs/keys.md: both are written from the schemas of the keys.

python -m nlu.config.entry.help > docs/keys.md
"""

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from nlu.config.checks.values import rule_of, show
from nlu.config.choices import PLAIN_GROUPS, RUN, SCHEMAS, conf_dir, node_of, targets_of
from nlu.config.keys import REQUIRED, Schema, schema_of
from nlu.config.resolving import without_hydra
from nlu.config.types import TARGET

WIDTH, COLUMN = 120, 34
PAGE = """# Keys

Each key with what it may be, its default and its meaning. `python -m nlu.config.entry.help > docs/keys.md` writes this
page. `KEY=VALUE` sets a key, and `GROUP=CHOICE` chooses a class with keys of its own: `optimizer.lr=2e-5 method=rdrop
method.alpha=4`. `python -m nlu.train --help model=bert` shows the keys of a choice with their values. The keys of a
search are in [searches](searches.md), those of launchers in [clusters](clusters.md) and [PAI](clusters-pai.md).
"""


def help_text(command: str, composed: DictConfig) -> str:
    """Return the help of a command: what it does, the choices of its groups, and its keys with their values."""
    schema = schema_of(SCHEMAS.get(command, RUN))
    config: Any = OmegaConf.to_container(without_hydra(composed), resolve=False)
    chosen: Mapping[str, str | None] = composed.hydra.runtime.choices
    loader = GlobalHydra.instance().config_loader()
    lines = [_document(command), "", "Groups: GROUP=CHOICE chooses"]
    for group in [*schema.keys, "experiment", "debug", "hydra/launcher", "hydra/sweeper"]:
        if group in chosen:
            choices = f"[{', '.join(loader.get_group_options(group))}]"
            lines += _entry(f"{group}={chosen[group] or 'null'}", f"{schema.help.get(group, '')} {choices}".lstrip())
    own = _own_keys(command)
    lines += ["", "Keys: KEY=VALUE sets"]
    lines += _entries("", schema, {key: config.get(key) for key in own if key not in chosen})
    for key in own:
        node = config.get(key)
        target = PLAIN_GROUPS.get(key) or (node.get(TARGET) if isinstance(node, dict) else None)
        if target is not None:
            inner = schema_of(target)
            lines += _entries(f"{key}.", inner, {name: node.get(name, REQUIRED) for name in inner.keys})
    if len(own) < len(schema.keys):
        lines += ["", "Every key of nlu.train is accepted too: python -m nlu.train --help"]
    return "\n".join([*lines, "", "All keys: docs/keys.md. Hydra's own flags: --hydra-help"])


def keys_page() -> str:
    """Return docs/keys.md."""
    run = schema_of(RUN)
    parts = [PAGE, "## Top level", _table(run, [key for key in run.keys if not _is_group(key)])]
    for group in filter(_is_group, run.keys):
        parts += [f"## {group}", run.help[group]]
        if group in PLAIN_GROUPS:
            parts += [_table(schema_of(PLAIN_GROUPS[group]))]
            continue
        of_class: dict[str, list[str]] = {}
        for choice, target in targets_of(group).items():
            of_class.setdefault(target, []).append(choice)
        shown: dict[str, str] = {}
        for target, choices in of_class.items():
            schema = schema_of(target)
            table = _table(schema)
            same = shown.setdefault(table, choices[0])
            parts += [f"### {group}={', '.join(choices)}", _summary(schema)]
            parts += [table if same == choices[0] or not table else f"The keys are those of `{group}={same}`."]
            parts += ["\n".join(_differences(group, choices, schema))]
    for command in list(SCHEMAS)[1:]:
        parts += [f"## nlu.{command}", _document(command).partition("\n")[0]]
        schema = schema_of(SCHEMAS[command])
        parts += [_table(schema, [key for key in _own_keys(command) if key != "precision"])]
        if "input" in schema.keys:
            parts += ["### input", _table(schema_of(PLAIN_GROUPS["input"]))]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _is_group(key: str) -> bool:
    return key in PLAIN_GROUPS or (conf_dir() / key).is_dir()


def _own_keys(command: str) -> list[str]:
    """Return the keys of a command; of one that takes all keys of `nlu.train`, only those that it has besides."""
    keys = schema_of(SCHEMAS.get(command, RUN)).keys
    of_run = schema_of(RUN).keys if command != "train" and "task" in keys and command in SCHEMAS else {}
    return [key for key in keys if key not in of_run]


def _document(command: str) -> str:
    module = importlib.import_module(f"nlu.{command}") if command in SCHEMAS else sys.modules["__main__"]
    return (module.__doc__ or "").strip()


def _summary(schema: Schema) -> str:
    """Return the first paragraph about a class."""
    text = (schema.described_by.__doc__ if schema.described_by else None) or ""
    return " ".join(text.strip().partition("\n\n")[0].split())


def _entries(prefix: str, schema: Schema, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        # A group is named above.
        if not (isinstance(value, dict) and TARGET in value) and name not in PLAIN_GROUPS:
            yield from _entry(f"{prefix}{name}={_shown(value)}", schema.help[name])


def _entry(first: str, text: str) -> list[str]:
    start, indent = f"  {first}  ".ljust(COLUMN), " " * COLUMN
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent) or [indent]
    if len(start) > COLUMN:
        return [start.rstrip(), *lines]
    return [f"{start}{lines[0][COLUMN:]}".rstrip(), *lines[1:]]


def _table(schema: Schema, names: list[str] | None = None) -> str:
    keys = [schema.keys[name] for name in (schema.keys if names is None else names)]
    rows = [
        f"| {key.name} | {_cell(rule_of(key.annotation).partition(' such as')[0])} | {_cell(_shown(key.default))} "
        f"| {_cell(schema.help[key.name])} |"
        for key in keys
        if key.name not in PLAIN_GROUPS
    ]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows]) if rows else ""


def _differences(group: str, choices: list[str], schema: Schema) -> Iterator[str]:
    for choice in choices:
        node = node_of(group, choice)
        own = {key: node[key] for key in schema.keys if key in node and node[key] != schema.keys[key].default}
        if own:
            yield f"- `{group}={choice}`: {', '.join(f'`{key}={show(value)}`' for key, value in own.items())}"


def _shown(value: object) -> str:
    return "required" if value is REQUIRED or value == "???" else show(value).strip('"') or '""'


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    print(keys_page(), end="")
