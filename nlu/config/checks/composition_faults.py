"""Why a configuration cannot be composed: the file, its line, the fault, and what to write instead.

Hydra names no lines, and blames the file whose choice was replaced instead of the one that replaced it. So the files
are read again, and checked without another composition.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path, PurePosixPath

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from nlu.config.choices import conf_dir
from nlu.config.command_line import said_of
from nlu.config.foreign import choice_elsewhere, key_elsewhere
from nlu.config.nearest import hint, nearest
from nlu.config.resolving import first_line
from nlu.config.sentences import path_text

OptionsOf = Callable[[str], list[str]]
"""returns the choices of a group; [] if there is no such group"""
SETS_OF_KEYS = ("experiment", "debug")
"""Groups whose choices set keys of other groups, so their files begin with HEADER."""
HEADER = "# @package _global_"
_HEADER = re.compile(r"\s*#\s*@package\s+(?P<package>\S+)[ \t]*$", re.MULTILINE)
_KEY = re.compile(r"\w+(\.[\w*-]+|\[\d+\])*")


def choice_problem(group: str, choice: str, options_of: OptionsOf) -> str | None:
    """Return what is wrong with the choice of a group; None if it exists."""
    options = sorted(options_of(group))
    everything = f"all: {', '.join(options)}"
    if choice in ("", "null"):
        return f"{group}={choice}: the choice of a group cannot be empty; leave it out, or name one; {everything}"
    path = PurePosixPath(group) / choice
    if path.name in options_of(str(path.parent)):
        return None
    if (elsewhere := choice_elsewhere(group, choice)) is not None:
        everything = f"{elsewhere}; {everything}"
    elif close := nearest(choice, options):
        everything = f"nearest: {', '.join(close)}; {everything}"
    else:
        groups = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
        if (other := next((each for each in groups if choice in options_of(each)), None)) is not None:
            everything = f"write {other}={choice}; {everything}"
    return f"{group}={choice}: unknown choice; {everything}"


def fault_of(error: Exception, config_name: str, loader: ConfigLoader, overrides: Sequence[str]) -> str:
    """Return why a configuration cannot be composed, given what Hydra or YAML raised."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
        names = [name for name in loader.get_group_options("") if not name.startswith("_")]
        return f"unknown configuration {config_name}; {hint(config_name, names)}"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        place = f"{path_text(Path(mark.name))}:{mark.line + 1}, column {mark.column + 1}"
        return f"{place}: not valid YAML: {error.problem}; correct it"
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


def misplaced(keys: Iterable[object], config_name: str, loader: ConfigLoader, overrides: Sequence[str]) -> list[str]:
    """Return what is wrong with files whose keys were composed, but not where they belong."""
    if any(key in SETS_OF_KEYS or "." in str(key) or str(key).startswith("_") for key in keys):
        return [fault for file in Files(config_name, loader, overrides).read.values() for fault in file.faults]
    return []


def _fault_of_key(error: OmegaConfBaseException, files: "Files") -> str:
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


def _in_file(error: Exception, files: "Files") -> str:
    """Return Hydra's message, with the file that it names as the user knows it."""
    said = re.split(r" full_key:|Config search path:", said_of(error))[0].rstrip()
    named = re.match(r"In '?(?P<name>[\w./-]+?)'?: (?P<said>.*)", said)
    if named is None or named["name"] not in files.read:
        return said
    return f"{path_text(files.read[named['name']].path)}: {named['said']}"


def _faults_of_file(file: "File", files: "Files") -> Iterator[str]:
    yield from file.faults
    last_override = 0
    for entry in file.entries:
        where = f"{file.place(entry.line)}: {entry.text}"
        if last_override and not entry.is_override:
            yield f"{where}: it follows an entry with override; move it above line {last_override}"
        last_override = entry.line if entry.is_override else last_override
        if (fault := _fault_of_entry(entry, file, files)) is not None:
            yield f"{where}: {fault}"


def _fault_of_entry(entry: "Entry", file: "File", files: "Files") -> str | None:
    folder, _, name = entry.name.rpartition("/")
    if entry.name in (file.name, *file.within):
        return f"{entry.name} includes itself; leave the entry out"
    if entry.is_file and name in files.options(folder):
        return None
    if entry.is_file or not files.options(entry.group):
        missing = f"there is no file {entry.name}.yaml" if entry.is_file else f"unknown group {entry.group}"
        written = entry.group.removeprefix(f"{file.group}/")
        found = files.options(written)
        if written != entry.group and (name in found if entry.is_file else found):
            return f"{missing}, since {written} has no slash in front; write /{written}"
        parent, _, last = written.rpartition("/")
        near = hint(name, files.options(entry.group)) if entry.is_file else hint(last, files.groups(parent))
        return f"{missing}; {near}"
    if name not in files.options(folder) and files.choices.get(entry.key) == entry.choice:
        problem = choice_problem(entry.group, entry.choice, files.options) or ""
        return problem.partition(": ")[2]
    default = files.default_of(entry.key)
    if default is None:
        # The defaults of Hydra itself are in no file.
        is_of_hydra = entry.group.startswith("hydra/")
        return None if is_of_hydra else f"no entry before it chooses {entry.key}; write it without override"
    other, replaced = default
    if entry.is_override or other is file or entry.choice == replaced.choice:
        return None
    place = other.place(replaced.line)
    return f"{place} chooses {replaced.choice} already; write override /{entry.group}, as the last entry"


@dataclass(frozen=True)
class Entry:
    """A choice in a defaults list, of a group or of a file in `group`, its folder."""

    line: int
    text: str
    group: str
    """absolute, such as hydra/launcher"""
    choice: str
    package: str = ""
    is_override: bool = False
    is_file: bool = False

    @property
    def name(self) -> str:
        """The file, without its folder of configurations and its ending."""
        return f"{self.group}/{self.choice}".lstrip("/").removesuffix(".yaml")

    @property
    def key(self) -> str:
        """The group, with the package if one is given."""
        package = self.package.removeprefix("_global_.")
        return f"{self.group}@{package}" if package not in ("", self.group.replace("/", ".")) else self.group


class File:
    """A file, with what is wrong with it alone; `within` names the files that include it, the nearest last."""

    def __init__(self, path: Path, name: str, package: str, within: Sequence[str]):
        self.path, self.name, self.within = path, name, within
        self.group, self.package = name.rpartition("/")[0], ""
        self.entries: list[Entry] = []
        self.faults: list[str] = []
        self.root: yaml.Node | None = None
        content = path.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            found = f"byte {content[error.start]:#04x} is not UTF-8; save the file in the encoding UTF-8"
            self.faults.append(f"{self.place(line)}: {found}")
            return
        header = _HEADER.match(text)
        own = header["package"] if header is not None else self.group.replace("/", ".")
        self.package = (package or own).removeprefix("_global_").lstrip(".")
        # Hydra has refused what is not YAML.
        with suppress(yaml.YAMLError):
            self.root = yaml.compose(text, Loader=yaml.CSafeLoader)
        if self.group in SETS_OF_KEYS and header is None:
            self.faults.append(
                f"{self.place(1)}: {HEADER} is missing, so the keys would be below {self.package}; make it the first "
                "line"
            )
        for key, value in _pairs(self.root):
            line = key.start_mark.line + 1
            if self.group in SETS_OF_KEYS and "." in key.value:
                nested = key.value.replace(".", ": {")
                self.faults.append(
                    f"{self.place(line)}: {key.value} is a single name in YAML; write {nested}: VALUE"
                    f"{'}' * key.value.count('.')}"
                )
            if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
                self.entries = [entry for item in value.value for entry in self._read_entry(item)]

    def place(self, line: int) -> str:
        """Return FILE:LINE."""
        return f"{path_text(self.path)}:{line}"

    def line_of(self, key: str) -> int | None:
        """Return the line of a full key; None if the file does not set it."""
        # The whole list stands for its items.
        parts, inside = key.partition("[")[0].split("."), self.package.split(".") if self.package else []
        node, line = self.root if parts[: len(inside)] == inside else None, None
        for part in parts[len(inside) :]:
            found = next((pair for pair in _pairs(node) if pair[0].value == part), None)
            if found is None:
                return None
            line, node = found[0].start_mark.line + 1, found[1]
        # What must be set elsewhere is not set here.
        return None if isinstance(node, yaml.ScalarNode) and node.value == "???" else line

    def _read_entry(self, item: yaml.Node) -> Iterator[Entry]:
        line = item.start_mark.line + 1
        if isinstance(item, yaml.ScalarNode) and item.value != "_self_" and "${" not in item.value:
            group, _, choice = self._absolute(item.value).rpartition("/")
            yield Entry(line, item.value, group, choice, is_file=True)
        for key, value in _pairs(item):
            *keywords, written = str(key.value).split() or [""]
            group, _, package = written.partition("@")
            for one in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                is_name = isinstance(one, yaml.ScalarNode) and one.value not in ("null", "~", "")
                # An optional choice need not exist.
                if is_name and "${" not in one.value and "optional" not in keywords:
                    text = f"{key.value}: {one.value}"
                    yield Entry(line, text, self._absolute(group), one.value, package, "override" in keywords)

    def _absolute(self, path: str) -> str:
        return path[1:] if path.startswith("/") else f"{self.group}/{path}".lstrip("/")


def _pairs(node: yaml.Node | None) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Return the plain keys of a mapping with their values; [] for any other node."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return [(key, value) for key, value in pairs if isinstance(key, yaml.ScalarNode)]


class Files:
    """The files of a command line: those that it chooses, then those that they choose, then the primary one.

    The first one that chooses a group or sets a key wins, as with Hydra in all but contrived cases.
    """

    def __init__(self, config_name: str, loader: ConfigLoader, overrides: Sequence[str]):
        self._loader = loader
        self._search = [override for override in overrides if override.startswith("hydra.searchpath")]
        self._given = [one for text in overrides for one in _read(text)]
        single = {one.key_or_group: one.value() for one in self._given if not one.is_sweep_override()}
        folders = [source.path for source in loader.get_sources() if source.scheme() == "file"]
        searchpath = single.get("hydra.searchpath")
        folders += searchpath if isinstance(searchpath, list) else []
        self._folders = [Path(str(folder).removeprefix("file://")) for folder in folders]
        self.on_command_line = {
            one.get_key_element().lstrip("+"): choice
            for one in self._given
            if not one.is_sweep_override() and isinstance(choice := one.value(), str) and not one.is_value_path
        }
        """choices, among other keys"""
        self.choices = dict(self.on_command_line)
        """choices by group, with the package if one is given"""
        self.read: dict[str, File] = {}
        """files by name, those that win first"""
        for key, choice in self.on_command_line.items():
            group, _, package = key.partition("@")
            self._add(f"{group}/{choice}", package, ())
        self._add(config_name, "", ())

    def options(self, group: str) -> list[str]:
        """Return the choices of a group; [] if there is no such group."""
        return self._loader.get_group_options(group, overrides=self._search)

    def groups(self, parent: str) -> list[str]:
        """Return the groups inside another one, "" for those of the top level."""
        return self._loader.list_groups(parent)

    def default_of(self, key: str) -> tuple[File, Entry] | None:
        """Return the entry that an override replaces, with its file; None if there is none."""
        entries = ((file, one) for file in reversed(self.read.values()) for one in file.entries)
        return next(
            ((file, one) for file, one in entries if one.key == key and not (one.is_override or one.is_file)), None
        )

    def place(self, key: str) -> str | None:
        """Return FILE:LINE of a key; None if the command line or a shipped choice sets it, or nothing does."""
        for one in self._given:
            is_inside = key.startswith(f"{one.key_or_group}.") and isinstance(one.value(), dict)
            if key == one.key_or_group or is_inside:
                return None
        for file in self.read.values():
            is_shipped = file.path.is_relative_to(conf_dir()) and file.group not in SETS_OF_KEYS
            if not is_shipped and (line := file.line_of(key)) is not None:
                return file.place(line)
        return None

    def _add(self, name: str, package: str, within: Sequence[str]) -> None:
        path = next((path for folder in self._folders if (path := folder / f"{name}.yaml").is_file()), None)
        # Choices of plugins are dataclasses without a file.
        if path is None or name in self.read:
            return
        file = self.read[name] = File(path, name, package, within)
        for entry in reversed(file.entries):
            if entry.is_file or self.choices.setdefault(entry.key, entry.choice) == entry.choice:
                self._add(entry.name, entry.package, (*within, name))


def _read(override: str) -> list[Override]:
    # What cannot be read is reported elsewhere.
    with suppress(HydraException):
        return OverridesParser.create().parse_overrides([override])
    return []
