"""What `--help` prints, and docs/keys.md: both are written from the schemas of the keys.

python -m nlu.config.entry.help > docs/keys.md
"""

import importlib
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from nlu.config.checks.validate import rule_of, show
from nlu.config.choices import PLAIN_GROUPS, RUN, SCHEMAS, conf_dir, node_of, targets_of
from nlu.config.keys import REQUIRED, Schema, schema_of
from nlu.config.resolving import as_written, without_hydra
from nlu.config.types import TARGET, ConfigLike

WIDTH, COLUMN = 120, 34
PAGE = """# Keys

Each key with its default, what it may be and its meaning, written by `python -m nlu.config.entry.help > docs/keys.md`.
`KEY=VALUE` sets a key, and `GROUP=CHOICE` chooses a class with keys of its own: `optimizer.lr=2e-5 method=rdrop
method.alpha=4`. A key whose default is null may be null, and one whose default is true or false is either.
`python -m nlu.train --help model=bert` shows the keys of a choice with their values. The keys of a search are in
[searches](searches.md), those of launchers in [clusters](clusters.md) and [PAI](clusters-pai.md).
"""
LONGEST_PRESET = 40
"""Characters of a value that a preset sets; longer ones, such as addresses, are in its YAML file."""


def help_text(command: str, composed: DictConfig) -> str:
    """Return the help of a command: what it does, the choices of its groups, and its keys with their values."""
    schema = schema_of(SCHEMAS.get(command, RUN))
    config = as_written(without_hydra(composed))
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
        node = value if isinstance(value := config.get(key), dict) else {}
        target = PLAIN_GROUPS.get(key) or node.get(TARGET)
        if target is not None:
            inner = schema_of(target)
            lines += _entries(f"{key}.", inner, {name: node.get(name, REQUIRED) for name in inner.keys})
    if len(own) < len(schema.keys):
        lines += ["", "Every key of nlu.train is accepted too: python -m nlu.train --help"]
    return "\n".join([*lines, "", "All keys: docs/keys.md. Hydra's own flags: --hydra-help"])


def keys_page() -> str:
    """Return docs/keys.md."""
    run = schema_of(RUN)
    parts = [PAGE, "## Top level", _list(run, [key for key in run.keys if not _is_group(key)])]
    for group in filter(_is_group, run.keys):
        parts += [f"## {group}", run.help[group]]
        if group in PLAIN_GROUPS:
            parts += [_list(schema_of(PLAIN_GROUPS[group]))]
            continue
        of_class: dict[str, list[str]] = {}
        for choice, target in targets_of(group).items():
            of_class.setdefault(target, []).append(choice)
        entries = []
        for target, choices in of_class.items():
            schema = schema_of(target)
            head = f"### {group}={', '.join(choices)}\n\n{_summary(schema)}"
            entries.append((head, schema, list(schema.keys), "\n".join(_differences(group, choices, schema))))
        parts += _sections(f"### {group}: shared keys", entries)
    entries = []
    for command in list(SCHEMAS)[1:]:
        schema = schema_of(SCHEMAS[command])
        head = f"## nlu.{command}\n\n{_document(command).partition(chr(10))[0]}"
        rows = f"### input\n\n{_list(schema_of(PLAIN_GROUPS['input']))}" if "input" in schema.keys else ""
        entries.append((head, schema, [key for key in _own_keys(command) if key != "precision"], rows))
    parts += _sections("## Commands: shared keys", entries)
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _sections(title: str, entries: list[tuple[str, Schema, list[str], str]]) -> Iterator[str]:
    """Yield a section for each (head, schema, names of keys, end); what several describe alike is at the end, once."""
    about = [{name: text for name, text in _about(schema).items() if name in names} for _, schema, names, _ in entries]
    shared: dict[str, str] = {}
    for (name, text), number in Counter(item for each in about for item in each.items()).items():
        if number > 1:
            shared.setdefault(name, text)
    anchor = re.sub(r"[#:]", "", title).strip().replace(" ", "-").lower()
    for (head, schema, _, end), of_keys in zip(entries, about, strict=True):
        yield head
        yield _list(schema, [name for name, text in of_keys.items() if shared.get(name) != text])
        names = [name for name, text in of_keys.items() if shared.get(name) == text]
        values = (f"{name} {_escaped(_shown(schema.keys[name].default))}" for name in names)
        yield f"[Shared keys](#{anchor}): {', '.join(values)}." if names else ""
        yield end
    if shared:
        yield title
        yield "\n".join(f"- **{name}**{text}" for name, text in shared.items())


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


def _entries(prefix: str, schema: Schema, values: ConfigLike) -> Iterator[str]:
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


def _list(schema: Schema, names: list[str] | None = None) -> str:
    """Return an item of a list for each key: its name, default, rule and meaning."""
    about = _about(schema)
    keys = [schema.keys[name] for name in (about if names is None else names) if name in about]
    return "\n".join(f"- **{key.name}** {_escaped(_shown(key.default))}{about[key.name]}" for key in keys)


def _about(schema: Schema) -> dict[str, str]:
    """Return the rule of each key, unless its default or its meaning say it, and its meaning."""
    about = {}
    for name, key in schema.keys.items():
        if name not in PLAIN_GROUPS:
            rule, meaning, default = _short_rule(key.annotation, key.default), schema.help[name], _shown(key.default)
            choices = rule.removeprefix("one of ").split(", ") if rule.startswith("one of ") else []
            is_said = (
                rule in meaning or choices and all(f"{choice} = " in meaning for choice in choices if choice != default)
            )
            about[name] = _escaped(f" ({rule}): {meaning}" if rule and not is_said else f": {meaning}")
    return about


def _short_rule(annotation: object, default: object) -> str:
    """Return the rule of a key in few words, "" if the default shows it."""
    rule = rule_of(annotation).partition(" such as")[0]
    rule = rule.removesuffix(" or null") if default is None else rule
    rule = rule.replace(", each item a", " of a").replace(", each item", " of").replace(", each value", " to")
    rule = re.sub(r"\ban? (?=number|integer|text|list|mapping|ratio|duration|file|odd|run|folder)", "", rule)
    rule = re.sub(r">= (\S+) and (<=?) (\S+)", lambda bound: f"in [{bound[1]}, {bound[3]}{')]'['=' in bound[2]]}", rule)
    return "" if rule in ("text", "true or false") else rule


def _differences(group: str, choices: list[str], schema: Schema) -> Iterator[str]:
    for choice in choices:
        node = node_of(group, choice)
        own = {key: node[key] for key in schema.keys if key in node and node[key] != schema.keys[key].default}
        shown = [f"`{key}={show(value)}`" for key, value in own.items() if len(show(value)) <= LONGEST_PRESET]
        if shown:
            yield f"- `{group}={choice}`: {', '.join(shown)}"


def _shown(value: object) -> str:
    return "required" if value is REQUIRED or value == "???" else show(value).strip('"') or '""'


def _escaped(text: str) -> str:
    return text.replace("*", "\\*")


if __name__ == "__main__":
    print(keys_page(), end="")
