"""Configuration files as they are written: the lines of their keys and of their defaults lists, which Hydra forgets."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from nlu.config.choices import conf_dir
from nlu.config.nearest import hint
from nlu.config.words import listed, path_text

SETS_OF_KEYS = ("experiment", "debug")
"""Groups whose choices set keys of other groups, so their files begin with HEADER."""
HEADER = "# @package _global_"
_HEADER = re.compile(r"\s*#\s*@package\s+(?P<package>\S+)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A choice in a defaults list, of a group or of a file in `group`, its folder."""

    line: int
    text: str
    group: str
    """absolute, such as hydra/launcher"""
    choice: str
    package: str | None = None
    is_override: bool = False
    is_optional: bool = False
    is_file: bool = False

    @property
    def name(self) -> str:
        """The file, without its folder of configurations and its ending."""
        return f"{self.group}/{self.choice}".lstrip("/").removesuffix(".yaml")

    @property
    def key(self) -> str:
        """The group, with the package if one is given."""
        package = (self.package or "").removeprefix("_global_.")
        return f"{self.group}@{package}" if package not in ("", self.group.replace("/", ".")) else self.group

    def written(self, group: str, choice: str) -> str:
        """Return the entry with another group and choice."""
        if self.is_file:
            return f"- /{group}/{choice}" if "/" in self.text else f"- {choice}"
        package = "" if self.package is None else f"@{self.package}"
        return f"- {'override ' * self.is_override}/{group}{package}: {choice}"


class File:
    """A file, with what is wrong with it alone; `within` names the files that include it, the nearest last."""

    def __init__(self, path: Path, name: str, package: str | None, within: Sequence[str]):
        self.path, self.name, self.within = path, name, within
        self.group = name.rpartition("/")[0]
        self.entries: list[Entry] = []
        self.faults: list[str] = []
        self.root: yaml.Node | None = None
        content = path.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            self.fault(line, f"byte {content[error.start]:#04x} is not UTF-8; save the file in the encoding UTF-8")
            return
        header = _HEADER.match(text)
        own = header["package"] if header is not None else self.group.replace("/", ".")
        self.package = (own if package is None else package).removeprefix("_global_").lstrip(".")
        # Hydra has refused what is not YAML.
        with suppress(yaml.YAMLError):
            self.root = yaml.compose(text, Loader=yaml.CSafeLoader)
        if self.group in SETS_OF_KEYS:
            self._check_keys(text)
        self._read_defaults()

    def fault(self, line: int, text: str) -> None:
        """Note what is wrong in a line."""
        self.faults.append(f"{self.place(line)}: {text}")

    def place(self, line: int) -> str:
        """Return FILE:LINE."""
        return f"{path_text(self.path)}:{line}"

    def line_of(self, key: str) -> int | None:
        """Return the line of a full key; None if the file does not set it."""
        # The whole list stands for its items.
        parts, inside = key.partition("[")[0].split("."), self.package.split(".") if self.package else []
        node, line = self.root if parts[: len(inside)] == inside else None, None
        for part in parts[len(inside) :]:
            if (found := _find(node, part)) is None:
                return None
            line, node = found
        # What must be set elsewhere is not set here.
        return None if isinstance(node, yaml.ScalarNode) and node.value == "???" else line

    def _check_keys(self, text: str) -> None:
        """Find keys that land elsewhere than the keys of a set do."""
        if not isinstance(self.root, yaml.MappingNode):
            found = "is empty" if not text.strip() else "holds no keys"
            self.fault(1, f"the file {found}; write {HEADER} in line 1 and keys, such as seed: 1, below it")
            return
        keys = [str(key.value) for key, _ in self.root.value]
        if self.package == self.group or self.package.startswith("_"):
            where = next((at for at, line in enumerate(text.splitlines(), 1) if "@package" in line), None)
            found = "is missing" if where is None else f"stands in line {where} with something before it"
            if where == 1:
                found = "follows a byte order mark" if text[0] == "\ufeff" else "is not written so"
            owned = listed([key for key in keys if key != "defaults"]) or "all keys"
            self.fault(1, f"{HEADER} {found}, so {owned} would be below {self.package}; make it the first line")
        for key, _ in self.root.value:
            if "." in key.value:
                *outer, last = key.value.split(".")
                written = f"{': {'.join(outer)}: {{{last}: VALUE{'}' * len(outer)}"
                self.fault(key.start_mark.line + 1, f"{key.value} is a single name in YAML; write {written}")

    def _read_defaults(self) -> None:
        found = _find(self.root, "defaults")
        if found is not None and isinstance(found[1], yaml.SequenceNode):
            for item in found[1].value:
                self.entries += self._read_entry(item)
        elif found is not None:
            self.fault(found[0], "defaults is not a list; write - in front of each entry")

    def _read_entry(self, item: yaml.Node) -> Iterator[Entry]:
        line = item.start_mark.line + 1
        if isinstance(item, yaml.ScalarNode):
            if item.value != "_self_":
                path, _, package = item.value.partition("@")
                folder, _, name = self._absolute(path).rpartition("/")
                yield Entry(line, item.value, folder, name, package or None, is_file=True)
            return
        pairs = item.value if isinstance(item, yaml.MappingNode) else []
        if len(pairs) != 1 or not all(isinstance(key, yaml.ScalarNode) and key.value for key, _ in pairs):
            self.fault(line, "an entry of defaults has one group; write - in front of each")
            return
        key, value = pairs[0]
        *keywords, written = key.value.split()
        for word in {*keywords} - {"override", "optional"}:
            self.fault(line, f"{key.value}: unknown word {word}; {hint(word, ['override', 'optional'])}")
        group, _, package = written.partition("@")
        flags = ("override" in keywords, "optional" in keywords)
        for one in value.value if isinstance(value, yaml.SequenceNode) else (value,):
            if not isinstance(one, yaml.ScalarNode):
                self.fault(line, f"{key.value}: the choice of a group is a name or a list of names")
            elif one.value not in ("null", "~", "") and "${" not in one.value:
                text = f"{key.value}: {one.value}"
                yield Entry(line, text, self._absolute(group), one.value, package or None, *flags)

    def _absolute(self, path: str) -> str:
        return path[1:] if path.startswith("/") else f"{self.group}/{path}".lstrip("/")


def _find(node: yaml.Node | None, name: str) -> tuple[int, yaml.Node] | None:
    """Return the line and the value of a key of a mapping."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next(((key.start_mark.line + 1, value) for key, value in pairs if key.value == name), None)


def _read(override: str) -> list[Override]:
    # What cannot be read is reported elsewhere.
    with suppress(HydraException):
        return OverridesParser.create().parse_overrides([override])
    return []


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
            self._add(f"{group}/{choice}", package or None, ())
        self._add(config_name, None, ())

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

    def _add(self, name: str, package: str | None, within: Sequence[str]) -> None:
        path = next((path for folder in self._folders if (path := folder / f"{name}.yaml").is_file()), None)
        # Choices of plugins are dataclasses without a file.
        if path is None or name in self.read:
            return
        file = self.read[name] = File(path, name, package, within)
        for entry in reversed(file.entries):
            if entry.is_file or self.choices.setdefault(entry.key, entry.choice) == entry.choice:
                self._add(entry.name, entry.package, (*within, name))
