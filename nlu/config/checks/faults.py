"""Why a configuration cannot be composed: the file, its line, the fault, and what to write instead.

Hydra names no lines, and blames the file whose choice was replaced instead of the one that replaced it. So the files
are read again, and checked without another composition.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.errors import InstantiationException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from nlu.config.checks.files import SETS_OF_KEYS, Entry, File, Files
from nlu.config.checks.reading import said_of
from nlu.config.choices import conf_dir
from nlu.config.foreign import choice_elsewhere, key_elsewhere
from nlu.config.nearest import hint, nearest
from nlu.config.resolving import first_line
from nlu.config.words import path_text

OptionsOf = Callable[[str], list[str]]
"""returns the choices of a group; [] if there is no such group"""
_KEY = re.compile(r"\w+(\.[\w*-]+|\[\d+\])*")
_PAIR = re.compile(r"(override |optional )?/?(?P<group>[\w/]+)[:=](?P<choice>\w+)")
_YAML_REMEDIES = {
    "mapping values are not allowed": "quote a value that contains a colon and a space",
    "cannot start any token": "indent with spaces instead of tabs, and quote a value that begins with @, ` or %",
    "found duplicate key": "keep one of them",
}
"""by a part of the parser's message"""


def choice_problem(group: str, choice: str, options_of: OptionsOf) -> str | None:
    """Return what is wrong with the choice of a group; None if it exists."""
    if choice in ("", "null"):
        everything = ", ".join(sorted(options_of(group)))
        return f"{group}={choice}: the choice of a group cannot be empty; leave it out, or name one; all: {everything}"
    path = PurePosixPath(group) / choice
    if path.name in options_of(str(path.parent)):
        return None
    return f"{group}={choice}: unknown choice; {_meant(group, choice, options_of, lambda *other: '='.join(other))}"


def _meant(group: str, choice: str, options_of: OptionsOf, written: Callable[[str, str], str]) -> str:
    """Return the choice that was meant, of this group or another, and all choices of the group."""
    options = sorted(options_of(group))
    everything = f"all: {', '.join(options)}"
    if (elsewhere := choice_elsewhere(group, choice)) is not None:
        return f"{elsewhere}; {everything}"
    if close := nearest(choice, options):
        return f"nearest: {', '.join(close)}; {everything}"
    other = _group_of(choice, options_of)
    return f"write {written(other, choice)}; {everything}" if other else everything


def _group_of(choice: str, options_of: OptionsOf) -> str | None:
    """Return the shipped group that has a choice; None if none has."""
    groups = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
    return next((group for group in groups if choice in options_of(group)), None)


def fault_of(error: Exception, config_name: str, loader: ConfigLoader, overrides: Sequence[str]) -> str:
    """Return why a configuration cannot be composed, given what Hydra or YAML raised."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
        names = [name for name in loader.get_group_options("") if not name.startswith("_")]
        return f"unknown configuration {config_name}; {hint(config_name, names)}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _fault_of_yaml(error, error.problem_mark)
    if isinstance(error, OverrideParseException | InstantiationException):
        return said_of(error)
    files = Files(config_name, loader, overrides)
    chain = (error, error.__cause__, error.__context__)
    reason = next((one for one in chain if isinstance(one, OmegaConfBaseException)), None)
    if reason is not None:
        return _fault_of_key(reason, files) if reason.full_key else _in_file(error, files)
    for text in overrides:
        if text.startswith("+") and f"Multiple values for {text[1:].partition('=')[0]}." in said_of(error):
            return f"{text}: the group has a choice already, so it is replaced; write {text[1:]}"
    for key, choice in files.on_command_line.items():
        group = key.partition("@")[0]
        if files.options(group) and (problem := choice_problem(group, choice, files.options)) is not None:
            return problem
    found = (fault for file in files.read.values() for fault in _faults_of_file(file, files))
    return next(found, None) or _in_file(error, files)


def with_places(problems: Sequence[str], config_name: str, loader: ConfigLoader, overrides: Sequence[str]) -> list[str]:
    """Return problems, with FILE:LINE in front of those that begin with a key that a file of the user's sets."""
    files = Files(config_name, loader, overrides)
    keys = [match[0] if (match := _KEY.match(problem)) is not None else "" for problem in problems]
    places = map(files.place, keys)
    return [f"{place}: {text}" if place else text for place, text in zip(places, problems, strict=True)]


def misplaced(config: Mapping[Any, Any], config_name: str, loader: ConfigLoader, overrides: Sequence[str]) -> list[str]:
    """Return what is wrong with files whose keys were composed, but not where they belong."""
    if any(key in SETS_OF_KEYS or "." in str(key) or str(key).startswith("_") for key in config):
        return [fault for file in Files(config_name, loader, overrides).read.values() for fault in file.faults]
    return []


def _fault_of_yaml(error: yaml.MarkedYAMLError, mark: Any) -> str:
    said, begins = str(error.problem), error.context_mark
    if begins is not None and begins.line != mark.line:
        said = f"{said}, {error.context}, which begins in line {begins.line + 1}"
    remedy = next((remedy for part, remedy in _YAML_REMEDIES.items() if part in said), "correct it")
    return f"{path_text(Path(mark.name))}:{mark.line + 1}, column {mark.column + 1}: not valid YAML: {said}; {remedy}"


def _fault_of_key(error: OmegaConfBaseException, files: Files) -> str:
    """Return what is refused about a key or its value, with the keys that exist beside it."""
    key = str(error.full_key)
    place = files.place(key)
    where = f"{place}: {key}" if place else key
    outer, _, last = key.rpartition(".")
    types = {one.name: one.type for one in fields(error.object_type)} if is_dataclass(error.object_type) else {}
    said = first_line(error)
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and types:
        group = outer.replace(".", "/")
        owner = f"{group}={files.choices[group]}" if group in files.choices else group
        elsewhere = key_elsewhere(key) or ""
        return f"{where}: {owner} has no such key; {elsewhere if ' hydra' in elsewhere else hint(last, types)}"
    if isinstance(error, ValidationError) and last in types:
        kind = getattr(types[last], "__name__", types[last])
        return f"{where}: {said}; write a value of type {str(kind).replace('None', 'null')}"
    return f"{where}: {said}; correct the value"


def _in_file(error: Exception, files: Files) -> str:
    """Return Hydra's message, with the file that it names as the user knows it."""
    said = re.split(r" full_key:|Config search path:", said_of(error))[0].rstrip()
    named = re.match(r"In '?(?P<name>[\w./-]+?)'?: (?P<said>.*)", said)
    if named is None or named["name"] not in files.read:
        return said
    return f"{path_text(files.read[named['name']].path)}: {named['said']}"


def _faults_of_file(file: File, files: Files) -> Iterator[str]:
    yield from file.faults
    last_override: Entry | None = None
    for entry in file.entries:
        where = f"{file.place(entry.line)}: {entry.text}"
        if last_override is not None and not entry.is_override:
            yield f"{where}: it follows an entry with override; move it above line {last_override.line}"
        last_override = entry if entry.is_override else last_override
        if (fault := _fault_of_entry(entry, file, files)) is not None:
            yield f"{where}: {fault}"


def _fault_of_entry(entry: Entry, file: File, files: Files) -> str | None:
    folder, _, name = entry.name.rpartition("/")
    if entry.name in (file.name, *file.within):
        return f"{entry.name} includes itself; leave the entry out"
    if entry.is_file and name in files.options(folder):
        return None
    if entry.is_file or not files.options(entry.group):
        return _not_found(entry, file, files)
    if name not in files.options(folder) and files.choices.get(entry.key) == entry.choice:
        meant = _meant(entry.group, entry.choice, files.options, entry.written)
        return None if entry.is_optional else f"unknown choice; {meant}"
    default = files.default_of(entry.key)
    if default is None:
        # The defaults of Hydra itself are in no file.
        is_of_hydra = entry.group.startswith("hydra/")
        return None if is_of_hydra else f"no entry before it chooses {entry.key}; write it without override"
    other, replaced = default
    if entry.is_override or other is file or entry.choice == replaced.choice:
        return None
    written = replace(entry, is_override=True).written(entry.group, entry.choice)
    return f"{other.place(replaced.line)} chooses {replaced.choice} already; write {written}, as the last entry"


def _not_found(entry: Entry, file: File, files: Files) -> str:
    """Return what to write for a group or a file that does not exist."""
    name = entry.name.rpartition("/")[2]
    missing = f"there is no file {entry.name}.yaml" if entry.is_file else f"unknown group {entry.group}"
    written = entry.group.removeprefix(f"{file.group}/")
    found = files.options(written)
    if written != entry.group and (name in found if entry.is_file else found):
        return f"{missing}, since {written} has no slash in front; write {entry.written(written, name)}"
    if entry.is_file and (pair := _PAIR.fullmatch(entry.text)) is not None:
        choice = replace(entry, is_file=False, is_override=True)
        return f"it has no choice; write {choice.written(pair['group'], pair['choice'])}, with a colon and a space"
    if entry.is_file and (group := _group_of(name, files.options)) is not None and group != entry.group:
        return f"{missing}; write {replace(entry, is_file=False, is_override=True).written(group, name)}"
    if entry.is_file:
        options = files.options(entry.group)
        remedies = [entry.written(entry.group, close) for close in nearest(name, options)]
    else:
        parent, _, last = written.rpartition("/")
        options = [f"{parent}/{option}".lstrip("/") for option in files.groups(parent)]
        remedies = [entry.written(close, entry.choice) for close in nearest(last, options)]
    return f"{missing}; " + (f"write {remedies[0]}" if remedies else f"valid: {', '.join(options)}")
