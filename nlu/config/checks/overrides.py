"""Say what is wrong with a command line that Hydra refused: everything at once, each with the nearest valid name.

Hydra stops at the first override that does not fit. Here those that compose are collected, and the others are found by
halving, so that each of them is reported. Then the configuration of those that compose is validated. Hydra's messages
are passed on; the nearest key or choice is found in the configuration, not in Hydra's wording.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import yaml
from hydra import initialize_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.checks.composing import compose, first_line, made_once, resolved
from nlu.config.checks.reading import (
    USER_MISTAKES,
    first_values,
    interval_problem,
    overrides_of_sweep,
    read_override,
    rejoined,
    said_of,
    sweep_problem,
)
from nlu.config.checks.unknown import hint_of_key
from nlu.config.checks.validate import known_keys, problems
from nlu.config.choices import EVALUATE, RUN
from nlu.config.errors import UserError
from nlu.config.foreign import choice_elsewhere, key_elsewhere, table
from nlu.config.keys import schema_of
from nlu.config.nearest import hint
from nlu.config.schema import flat

OfHydra = Callable[[DictConfig, Sequence[Override]], list[str]]
"""returns what is wrong with Hydra's keys of a --multirun, given the composed configuration with `hydra` and the
overrides that can be read"""


def override_problems(
    config_name: str,
    search_path: Sequence[str],
    overrides: Sequence[str],
    schema: str = RUN,
    is_multirun: bool = False,
    of_hydra: OfHydra = lambda config, overrides: [],
) -> list[str]:
    """Return every problem of a command line, as override, rule and remedy; [] if it composes and is valid.

    `search_path` holds URIs of configuration directories, such as `file:///conf`; earlier ones win. The values of a
    sweep are tried one by one, and refused without `is_multirun`. With it, `of_hydra` is asked too. Hydra must not be
    initialized yet.
    """
    with initialize_config_search_path(search_path):
        keys = frozenset(schema_of(schema).keys)
        return _Trial(config_name, is_multirun, keys, of_hydra).run(overrides, schema)


def with_known_keys(
    config_name: str, search_path: Sequence[str], overrides: Sequence[str], schema: str = RUN
) -> list[str]:
    """Return the overrides, with `++` before each key that a signature has and the configuration files leave out.

    Without `++`, Hydra sets only keys that some file contains.
    """
    with initialize_config_search_path(list(search_path)):
        try:
            read = [(override, read_override(override)) for override in overrides]
            plain = {
                override: parsed.key_or_group
                for override, parsed in read
                if override[0] not in "+~" and parsed.package is None and "." in parsed.key_or_group
            }
            if not plain:
                return list(overrides)
            # These decide which signatures there are. The plain ones may set keys that Hydra does not know yet.
            others = first_values([override for override in overrides if override not in plain])
            config = compose(config_name, others)
        except (UserError, *USER_MISTAKES):
            return list(overrides)
    left_out = {override for override, key in plain.items() if is_left_out(key, config, schema)}
    return [f"++{override}" if override in left_out else override for override in overrides]


def is_left_out(key: str, config: DictConfig, schema: str) -> bool:
    """Whether a composed configuration lacks a key that one of its signatures has."""
    return "." in key and not has_key(config, key) and key in settable_keys(config, schema)


def settable_keys(config: DictConfig, schema: str) -> set[str]:
    """Return the full keys of a composed configuration and of its signatures."""
    return made_once(config, f"keys of {schema}", lambda composed: known_keys(resolved(composed)[0], schema))


def has_key(config: DictConfig, key: str) -> bool:
    """Whether a composed configuration has a dotted key, set or not."""
    node: object = config
    *parents, last = key.split(".")
    for name in parents:
        if not isinstance(node, DictConfig) or name not in node or OmegaConf.is_missing(node, name):
            return False
        try:
            node = node[name]
        except OmegaConfBaseException:
            return False
    return isinstance(node, DictConfig) and last in node.keys()


@dataclass(frozen=True)
class _Alternative:
    """An override, or one value of a sweep."""

    text: str
    key: str
    value: str
    is_choice: bool
    is_plain: bool
    """whether it changes an existing key"""


@dataclass
class _Trial:
    """Overrides that compose together so far, and the problems of the others."""

    config_name: str
    is_multirun: bool
    keys: frozenset[str]
    """top-level keys of the command"""
    of_hydra: OfHydra
    accepted: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    refused_groups: set[str] = field(default_factory=set)
    drawn: list[str] = field(default_factory=list)
    """overrides with intervals, from which only a search can draw"""
    readable: list[Override] = field(default_factory=list)
    """overrides that Hydra can read"""

    def run(self, given: Sequence[str], schema: str) -> list[str]:
        overrides, torn = rejoined(given)
        self.found += torn
        # First the search path, then the choices of groups: both decide which other keys exist.
        parsed = [(override, alternatives) for override in overrides if (alternatives := self.parse(override))]
        parsed.sort(key=lambda item: (not item[0].startswith("hydra.searchpath"), not item[1][0].is_choice))
        choices = [item for item in parsed if item[1][0].is_choice or item[0].startswith("hydra.searchpath")]
        for _, alternatives in choices:
            self.accept_choice(alternatives)
        config = self.compose_base()
        if config is None:
            return self.found
        if self.drawn and self.compose_hydra().runtime.choices["hydra/sweeper"] == "basic":
            self.found += map(interval_problem, self.drawn)
        config = self.accept_all([alternatives for _, alternatives in parsed[len(choices) :]], config, schema)
        plain, unresolved = resolved(config)
        # A trained run has its own configuration, so the rules between groups do not apply to this one.
        is_of_run = schema == EVALUATE and plain.get("run") is not None
        with_cross_rules = not self.refused_groups and not is_of_run
        found = self.found + unresolved + self.without_refused(problems(plain, schema, with_cross_rules))
        # A refused key of a single run should cost little more than Hydra, and its keys of Hydra are checked next.
        if not self.is_multirun or any(group.startswith("hydra.") for group in self.refused_groups):
            return found
        whole = compose(self.config_name, self.accepted, with_hydra=True)
        return found + self.of_hydra(whole, self.readable)

    def parse(self, override: str) -> list[_Alternative]:
        try:
            parsed = read_override(override)
        except UserError as error:
            self.found += error.problems
            return []
        self.readable.append(parsed)
        return self.alternatives(override, parsed)

    def alternatives(self, override: str, parsed: Override) -> list[_Alternative]:
        key = parsed.key_or_group
        changes = not (parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.is_list_extend())
        # All commands share the folder of groups, but each composes only some.
        is_known = key.split("/")[0] in {*self.keys, "hydra"} or "/" in key
        is_choice = changes and parsed.package is None and is_known and _is_group(key)
        is_plain = changes and not is_choice
        if not parsed.is_sweep_override():
            value = "null" if parsed.value() is None else parsed.value()
            is_one = is_choice and not isinstance(value, list | dict)
            return [_Alternative(override, key, str(value), is_one, is_plain)]
        if not self.is_multirun:
            self.found.append(sweep_problem(override, key))
            self.refused_groups |= {key.replace("/", ".")} if is_choice else set()
        if self.is_multirun and key.startswith("hydra."):
            self.found.append(f"{override}: all jobs share the keys of Hydra; give {key} one value, or a list: [...]")
            return []
        if self.is_multirun and not parsed.is_discrete_sweep():
            self.drawn.append(override)
        if not self.is_multirun:
            return []
        if isinstance(interval := parsed.value(), IntervalSweep):
            # Its ends are tried, as a search does, which also says how to draw integers: Hydra makes floats of them.
            name = parsed.get_key_element()
            numbers = [float(end) for end in (interval.start, interval.end) if end is not None]
            ends = [str(int(end) if end.is_integer() else end) for end in numbers]
            return [_Alternative(f"{name}={end}", key, end, is_choice, is_plain) for end in ends]
        if not parsed.is_discrete_sweep():
            return []
        pairs = zip(overrides_of_sweep(parsed), parsed.sweep_string_iterator(), strict=True)
        return [_Alternative(text, key, value, is_choice, is_plain) for text, value in pairs]

    def accept_choice(self, alternatives: list[_Alternative]) -> None:
        good = []
        for choice in alternatives:
            problem = choice_problem(choice.key, choice.value, self.options) if choice.is_choice else None
            if problem is None:
                good.append(choice.text)
            else:
                self.found.append(problem)
        if not good:
            # Any other choice makes the rest checkable; problems of this group are then left out.
            group = alternatives[0].key
            self.refused_groups.add(group.replace("/", "."))
            good = [f"{group}={option}" for option in self.options(group)]
        self.accepted += good[:1]

    def options(self, group: str) -> list[str]:
        return _options(group, self.config_name, self.accepted)

    def compose_base(self) -> DictConfig | None:
        try:
            return self.compose()
        except USER_MISTAKES as error:
            self.found.append(composition_problem(error, self.config_name))
        # If only the choice of one group is missing, any choice makes the rest checkable.
        for group in _groups():
            for option in self.options(group)[:1]:
                with suppress(*USER_MISTAKES):
                    config = self.compose(f"{group}={option}")
                    self.accepted.append(f"{group}={option}")
                    self.refused_groups.add(group)
                    return config
        return None

    def accept_all(self, items: list[list[_Alternative]], config: DictConfig, schema: str) -> DictConfig:
        """Accept the overrides that compose, in halves, which finds a wrong one among many fast."""
        if len(items) < 2:
            return self.accept(items[0], config, schema) if items else config
        if all(len(alternatives) == 1 for alternatives in items):
            texts = [_text(one, config, schema) for (one,) in items]
            with suppress(*USER_MISTAKES):
                composed = self.compose(*texts)
                self.accepted += texts
                return composed
        # The second half is tried together with what was accepted of the first.
        middle = len(items) // 2
        return self.accept_all(items[middle:], self.accept_all(items[:middle], config, schema), schema)

    def accept(self, alternatives: list[_Alternative], config: DictConfig, schema: str) -> DictConfig:
        good = None
        for alternative in alternatives:
            text = _text(alternative, config, schema)
            try:
                composed = self.compose(text)
            except USER_MISTAKES as error:
                # The keys of a group whose choice was refused are not known.
                if not f"{alternative.key}.".startswith(tuple(f"{group}." for group in self.refused_groups)):
                    self.found.append(self.refusal(alternative, error, config, schema))
            else:
                # Every value of a sweep is tried, but one is enough to continue.
                good = good or (text, composed)
        if good is None:
            return config
        self.accepted.append(good[0])
        return good[1]

    def compose(self, *more: str) -> DictConfig:
        return compose(self.config_name, [*self.accepted, *more])

    def refusal(self, alternative: _Alternative, error: Exception, config: DictConfig, schema: str) -> str:
        """Name the key that was meant if the given one does not exist, or the type of the value; else Hydra's error."""
        if not alternative.is_choice and not alternative.text.startswith("+"):
            if alternative.key.startswith("hydra."):
                composed = self.compose_hydra()
                if not has_key(composed, alternative.key.removeprefix("hydra.")):
                    return _unknown_hydra_key(alternative, composed)
            elif not has_key(config, alternative.key):
                return _unknown_key(alternative, config, schema)
        return f"{alternative.text} does not fit: {said_of(error)}"

    def compose_hydra(self) -> DictConfig:
        return compose(self.config_name, self.accepted, with_hydra=True).hydra

    def without_refused(self, found: list[str]) -> list[str]:
        # Another choice stands in for the refused one, so its problems are not the user's.
        starts = tuple(f"{group}{after}" for group in self.refused_groups for after in (".", " ", ":", "["))
        return [problem for problem in found if not problem.startswith(starts)]


def _text(alternative: _Alternative, config: DictConfig, schema: str) -> str:
    """Return the override as Hydra takes it: with `++` if only a signature has the key."""
    is_hidden = alternative.is_plain and is_left_out(alternative.key, config, schema)
    return f"++{alternative.text}" if is_hidden else alternative.text


def choice_problem(group: str, choice: str, options_of: Callable[[str], list[str]]) -> str | None:
    """Return what is wrong with the choice of a group; None if it exists. `options_of` lists the choices of a group."""
    if choice in ("", "null"):
        everything = ", ".join(sorted(options_of(group)))
        return f"{group}={choice}: the choice of a group cannot be empty; leave it out, or name one; all: {everything}"
    path = PurePosixPath(group) / choice
    options = options_of(str(path.parent))
    if path.name in options:
        return None
    close = choice_elsewhere(group, choice) or _options_hint(choice, options)
    everything = "" if "all: " in close else f"; all: {', '.join(sorted(options))}"
    return f"{group}={choice}: unknown choice; {close}{everything}"


def composition_problem(error: Exception, config_name: str) -> str:
    """Return why a configuration cannot be composed, with or without overrides."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
        is_searchable = GlobalHydra.instance().is_initialized()
        names = [name for name in _options("", None, []) if not name.startswith("_")] if is_searchable else []
        return f"unknown configuration {config_name}; {hint(config_name, names)}"
    if isinstance(error, MissingConfigException) and error.options:
        name = PurePosixPath(error.missing_cfg_file or "").name
        return f"{first_line(error)}; {_options_hint(name, list(error.options))}"
    if isinstance(error, yaml.YAMLError):
        return f"a configuration file is not valid YAML: {' '.join(str(error).split())}; correct it"
    reason = error if str(error) or error.__cause__ is None else error.__cause__
    key = getattr(reason, "full_key", None)
    return f"{key}: {first_line(reason)}" if key else said_of(reason)


def _unknown_hydra_key(alternative: _Alternative, composed: DictConfig) -> str:
    """Name the key of Hydra that was meant: the nearest in the chosen group, else the nearest of all."""
    key = alternative.key
    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    valid = [f"hydra.{name}" for name in flat({str(key): value for key, value in plain.items()})]
    group = key.rpartition(".")[0]
    choice = composed.runtime.choices.get(group.replace(".", "/"))
    whose = f"{group.replace('.', '/')}={choice}" if choice else "Hydra"
    siblings = [name for name in valid if name.rpartition(".")[0] == group] if choice else []
    elsewhere = key_elsewhere(key) or ""
    is_known = " hydra" in elsewhere or key in table("whole keys")
    close = elsewhere if is_known else hint(key, siblings or valid)
    if not is_known and not siblings and not close.startswith(("nearest", "write")):
        close = "see --hydra-help"
    if whose == "hydra/sweeper=basic":
        close += "; a search has more: hydra/sweeper=hyperband"
    return f"{key}: {whose} has no such key; {close}"


def _unknown_key(alternative: _Alternative, config: DictConfig, schema: str) -> str:
    key = alternative.key
    valid = settable_keys(config, schema)
    groups = [group for group in _groups() if group != "hydra"]
    if schema == RUN and key in groups and alternative.value:
        # A group that is in no list of defaults, such as debug. Other commands have fewer groups than conf.
        if (problem := choice_problem(key, alternative.value, lambda path: _options(path, None, []))) is not None:
            return problem
    is_of_a_group = "." not in key and any(alternative.value in _options(group, None, []) for group in groups)
    if is_of_a_group and key_elsewhere(key) is None:
        return f"{alternative.text}: unknown group; {hint(key, groups)}"
    return f"{key}: unknown key; {hint_of_key(key, valid, schema)}"


def _options_hint(value: str, options: list[str]) -> str:
    close = hint(value, options)
    everything = f"all: {', '.join(sorted(options))}"
    return f"{close}; {everything}" if close.startswith("nearest") else everything


def _options(group: str, config_name: str | None, overrides: list[str]) -> list[str]:
    loader: ConfigLoader = GlobalHydra.instance().config_loader()
    if config_name is None and not overrides:
        # The loader does the same, but first copies the search path, which takes a millisecond.
        found = (one.list(group, ObjectType.CONFIG) for one in loader.get_sources() if one.is_group(group))
        return sorted({name for names in found for name in names})
    searchpath = [override for override in overrides if override.startswith("hydra.searchpath")]
    return loader.get_group_options(group, ObjectType.CONFIG, config_name=config_name, overrides=searchpath)


def _groups(parent: str = "") -> list[str]:
    return GlobalHydra.instance().config_loader().list_groups(parent)


def _is_group(key: str) -> bool:
    return "." not in key and bool(_options(key, None, []) or _groups(key))
