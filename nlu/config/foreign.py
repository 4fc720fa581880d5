"""What to write for a name of another program: a key, a choice, a value, a metric, a function or a command.

The table is `foreign.txt` beside this file. It is read when a name is wrong, so it costs no start-up time.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nlu.config.choices import SCHEMAS, conf_dir
from nlu.config.keys import schema_of

_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".txt", ".conll", ".gz")
_CONFIGURATIONS = (".hjson", ".yaml", ".yml", ".jsonnet", ".libsonnet", ".toml")
_EXAMPLE = re.compile(r"[\d.]+(e-?\d+)?(ep|st|ex)?")
"""a value that is a number or a duration"""
_KEY = re.compile(r"^(\w+):", re.MULTILINE)
NAMED_CHOICES = 5
"""Choices that a hint names; the others are counted."""
_NOT_OF_A_CHOICE = ("hydra", "experiment", "debug")
"""Folders of conf/ that hold Hydra's own files or sets of overrides instead of choices."""


class _Row(NamedTuple):
    ours: str
    """what to write, alternatives with " / " between them; "-" = nothing, "later" = not yet"""
    why: str


@cache
def table(section: str) -> dict[str, _Row]:
    """Return the rows of a section of foreign.txt by name; a name of a choice or a value is that with its group or key.

    Names are in lower case.
    """
    rows: dict[str, _Row] = {}
    for names, _, answer in (row.partition(" -> ") for row in _rows(section)):
        ours, _, why = answer.partition(" | ")
        before, equals, _ = names.partition("=")
        prefix = f"{before}{equals}" if equals else ""
        for name in names.removeprefix(prefix).split():
            rows[f"{prefix}{name}".lower()] = _Row(ours, why)
    return rows


def _rows(section: str) -> Iterator[str]:
    (body,) = re.findall(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", _file(), re.MULTILINE | re.DOTALL)
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("#")]
    return iter(re.sub(r"\n +", " ", "\n".join(lines)).splitlines())


@cache
def _file() -> str:
    return Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")


def key_elsewhere(key: str, schema: str | None = None) -> str | None:
    """Return what to write for a key of another program or of another command; None if it is not known.

    `schema` is the dotted name of the dataclass of the command's keys; None = any command.
    """
    if (whole := table("whole keys").get(key)) is not None:
        return _text(whole, schema)
    rows, name = table("keys"), key.rpartition(".")[2].lower()
    row = rows.get(name) or next(
        (row for known, row in rows.items() if known.endswith("*") and name.startswith(known[:-1])), None
    )
    return None if row is None else _text(row, schema)


def key_of_another_choice(key: str, schema: str | None = None) -> str | None:
    """Return which choices have a key that those of the command leave out; None if none has.

    It is looked for in its group, or in all groups if it is given without one.
    """
    group, _, name = key.rpartition(".")
    if not name.isidentifier():
        return None
    found: dict[str, list[str]] = {}
    for each, choice, keys in _choices():
        if group in ("", each) and name in keys:
            found.setdefault(each, []).append(choice)
    if not found:
        return None
    owners = [f"{'a key' if group else f'{each}.{name}'} of {_named(each, choices)}" for each, choices in found.items()]
    command = "" if any(_is_of(each, schema) for each in found) else ", in python -m nlu.train"
    return f"it is {' or '.join(owners[:3])}{command}"


def _named(group: str, choices: list[str]) -> str:
    """Name choices as arguments, those of a user's own files first, since most others are fixed data sets."""
    order = sorted(choices, key=lambda choice: choice not in ("files", "corpus"))
    more = f" or {len(order) - NAMED_CHOICES} more" if len(order) > NAMED_CHOICES else ""
    return " or ".join(f"{group}={choice}" for choice in order[:NAMED_CHOICES]) + more


@cache
def _choices() -> list[tuple[str, str, frozenset[str]]]:
    """Return the group, the name and the keys of each choice; read once for all keys of a command line."""
    paths = [path for path in sorted(conf_dir().glob("*/*.yaml")) if path.parent.name not in _NOT_OF_A_CHOICE]
    texts = ((path.parent.name, path.stem, path.read_text(encoding="utf-8")) for path in paths)
    return [(group, name, frozenset(_KEY.findall(text))) for group, name, text in texts]


def choice_elsewhere(group: str, choice: str) -> str | None:
    """Return what to write for another program's name of a choice; None if it is not known."""
    if group == "data" and choice.lower().endswith(_FILES):
        return f"write data=files data.train={choice} for rows in a file"
    if (row := table("choices").get(f"{group}={choice}".lower())) is not None:
        return _text(row)
    if group == "model" and ("/" in choice or "-" in choice):
        return f"write model=hf model.pretrained=hf://{choice} for a model of the Hugging Face hub"
    return None


def value_elsewhere(key: str, value: object) -> str | None:
    """Return what to write for a value that a key of ours takes in another program; None if it is not known."""
    constants = {None: "null", True: "true", False: "false"}
    shown = constants[value] if value is None or isinstance(value, bool) else str(value)
    row = table("values").get(f"{key}={shown}".lower())
    return None if row is None else _text(row)


def metrics_elsewhere(metric: str, known: Iterable[str]) -> list[str]:
    """Return the metrics among `known` that another program's name may mean."""
    row = table("metrics").get(metric.lower())
    return [] if row is None else [name for name in row.ours.split() if name in set(known)]


def function_elsewhere(value: str) -> str | None:
    """Return an example of ours if a value calls a function of another search space."""
    name = value.partition("(")[0].strip().lower().rpartition(".")[2]
    row = table("functions").get(name) if value.endswith(")") else None
    return None if row is None else row.ours


def command_elsewhere(name: str) -> str | None:
    """Return our command for that of another program; None if it is not known."""
    row = table("commands").get(name.lower())
    return None if row is None else _text(row)


def is_configuration(path: str) -> bool:
    """Return whether a path looks like the configuration file of another program."""
    return path.lower().endswith(_CONFIGURATIONS)


def _text(row: _Row, schema: str | None = None) -> str:
    why = f"; {row.why}" if row.why else ""
    if row.ours == "-":
        return f"leave it out: {row.why}"
    if row.ours == "later":
        return f"nlu cannot do this yet{why}"
    answers = row.ours.split(" / ")
    for ours in answers:
        if _is_of(_group(ours), schema):
            return f"write {_as_example(ours)}{why}"
    command = next(name for name, each in SCHEMAS.items() if _is_of(_group(answers[0]), each))
    return f"it is {answers[0]} of python -m nlu.{command}{why}"


def _as_example(ours: str) -> str:
    """Return a remedy; if its value is a number or a duration, as an example, since the user has another value."""
    key, _, value = ours.partition("=")
    return f"{key}, such as {ours}" if _EXAMPLE.fullmatch(value) else ours


def _group(ours: str) -> str:
    """Return the top-level key of a remedy, such as `optimizer` of `optimizer.lr=1e-4`."""
    return re.split(r"[.=/ ]", ours.lstrip("'"))[0]


def _is_of(group: str, schema: str | None) -> bool:
    """Return whether a command has a top-level key; all have Hydra's keys and can be replaced by another command."""
    if schema not in SCHEMAS.values() or group in ("hydra", "python"):
        return True
    known = schema_of(schema).keys
    # Choices of these groups change keys of others.
    return group in known or group in ("debug", "experiment") and "trainer" in known
