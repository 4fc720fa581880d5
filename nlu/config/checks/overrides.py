"""Say what is wrong with a command line that Hydra refused: all of it at once, each with the nearest valid name.

Hydra stops at the first override that does not fit. Here those that compose are gathered, in halves of halves where one
does not, so that every one that does not fit is found, and what is left is validated as well. What Hydra says of one is
passed on as it is; the nearest key and the nearest choice are found by looking at the configuration, not at Hydra's
wording.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import yaml
from hydra import initialize_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

from nlu.config.checks.composing import compose, resolved
from nlu.config.checks.left_out import has_key, is_left_out, settable_keys
from nlu.config.checks.reading import (
    USER_MISTAKES,
    interval_problem,
    overrides_of_sweep,
    read_override,
    rejoined,
    said_of,
    sweep_problem,
)
from nlu.config.checks.resolve import first_line
from nlu.config.checks.validate import problems
from nlu.config.elsewhere import choice_elsewhere
from nlu.config.errors import UserError
from nlu.config.flat import flat
from nlu.config.nearest import hint, key_hint
from nlu.config.schemas import EVALUATE, RUN
from nlu.config.signature import read_signature

LONGEST_HINT = 200
"""characters of a hint; a longer one names too many keys to be read"""


def override_problems(
    config_name: str, search_path: Sequence[str], overrides: Sequence[str], schema: str = RUN, is_multirun: bool = False
) -> list[str]:
    """Return every problem of a command line, as override, rule and remedy; empty when it composes and is valid.

    `search_path` holds URIs of configuration directories, such as `file:///conf`; earlier ones win. The values of a
    sweep are tried one by one, and refused without `is_multirun`. Hydra must not be initialised when this is called.
    """
    with initialize_config_search_path(search_path):
        return _Trial(config_name, is_multirun, frozenset(read_signature(schema).parameters)).run(overrides, schema)


@dataclass(frozen=True)
class _Alternative:
    """An override as it was given or, of a sweep, with one of its values."""

    text: str
    key: str
    value: str
    is_choice: bool
    is_plain: bool
    """it is to change a key that is there"""


@dataclass
class _Trial:
    """Overrides that compose together so far, and what was wrong with the others."""

    config_name: str
    is_multirun: bool
    keys: frozenset[str]
    """the top-level keys of the command"""
    accepted: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    refused_groups: set[str] = field(default_factory=set)
    drawn: list[str] = field(default_factory=list)
    """overrides whose values only a search can draw"""

    def run(self, given: Sequence[str], schema: str) -> list[str]:
        overrides, torn = rejoined(given)
        self.found += torn
        # Where configurations are found comes first, choices next: they decide which other keys there are.
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
        # Of a trained run the configuration is the run's own, and not the one that was composed here.
        is_of_run = schema == EVALUATE and plain.get("run") is not None
        with_cross_rules = not self.refused_groups and not is_of_run
        return self.found + unresolved + self.without_refused(problems(plain, schema, with_cross_rules))

    def parse(self, override: str) -> list[_Alternative]:
        try:
            return self.alternatives(override, read_override(override))
        except UserError as error:
            self.found += error.problems
        return []

    def alternatives(self, override: str, parsed: Override) -> list[_Alternative]:
        key = parsed.key_or_group
        changes = not (parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.is_list_extend())
        # All commands share the groups, but not every command composes each of them.
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
        if self.is_multirun and not parsed.is_discrete_sweep():
            self.drawn.append(override)
        if not (self.is_multirun and parsed.is_discrete_sweep()):
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
            # Any choice in its place lets the rest be judged; what is said of this group is left out.
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
        # Where the choice of one group is all that is missing, any choice lets the rest be judged.
        for group in _groups():
            for option in self.options(group)[:1]:
                with suppress(*USER_MISTAKES):
                    config = self.compose(f"{group}={option}")
                    self.accepted.append(f"{group}={option}")
                    self.refused_groups.add(group)
                    return config
        return None

    def accept_all(self, items: list[list[_Alternative]], config: DictConfig, schema: str) -> DictConfig:
        """Accept what composes of several overrides, in halves: one among many that is wrong is soon found."""
        if len(items) < 2:
            return self.accept(items[0], config, schema) if items else config
        if all(len(alternatives) == 1 for alternatives in items):
            texts = [_text(one, config, schema) for (one,) in items]
            with suppress(*USER_MISTAKES):
                composed = self.compose(*texts)
                self.accepted += texts
                return composed
        middle = len(items) // 2
        return self.accept_all(items[middle:], self.accept_all(items[:middle], config, schema), schema)

    def accept(self, alternatives: list[_Alternative], config: DictConfig, schema: str) -> DictConfig:
        good = None
        for alternative in alternatives:
            text = _text(alternative, config, schema)
            try:
                composed = self.compose(text)
            except USER_MISTAKES as error:
                # The keys of a group are not known when its choice was refused.
                if not f"{alternative.key}.".startswith(tuple(f"{group}." for group in self.refused_groups)):
                    self.found.append(self.refusal(alternative, error, config, schema))
            else:
                good = good or (text, composed)
        if good is None:
            return config
        self.accepted.append(good[0])
        return good[1]

    def compose(self, *more: str) -> DictConfig:
        return compose(self.config_name, [*self.accepted, *more])

    def refusal(self, alternative: _Alternative, error: Exception, config: DictConfig, schema: str) -> str:
        """Say which key was meant where there is none of that name, and what Hydra says otherwise."""
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
        starts = tuple(f"{group}{after}" for group in self.refused_groups for after in (".", " ", ":", "["))
        return [problem for problem in found if not problem.startswith(starts)]


def _text(alternative: _Alternative, config: DictConfig, schema: str) -> str:
    """Return the override as Hydra takes it: with `++` where a signature alone knows the key."""
    is_hidden = alternative.is_plain and is_left_out(alternative.key, config, schema)
    return f"++{alternative.text}" if is_hidden else alternative.text


def choice_problem(group: str, choice: str, options_of: Callable[[str], list[str]]) -> str | None:
    """Return what is wrong with the choice of a group, `options_of` giving all of a group; None where there is it."""
    if choice in ("", "null"):
        everything = ", ".join(sorted(options_of(group)))
        return f"{group}={choice}: Hydra takes no empty choice of a group; leave it out, or name one; all: {everything}"
    path = PurePosixPath(group) / choice
    options = options_of(str(path.parent))
    if path.name in options:
        return None
    close = choice_elsewhere(group, choice) or _options_hint(choice, options)
    everything = "" if "all: " in close else f"; all: {', '.join(sorted(options))}"
    return f"{group}={choice}: there is no such choice; {close}{everything}"


def composition_problem(error: Exception, config_name: str) -> str:
    """Return what is wrong when a configuration cannot be composed, whatever the overrides."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
        is_searchable = GlobalHydra.instance().is_initialized()
        names = [name for name in _options("", None, []) if not name.startswith("_")] if is_searchable else []
        return f"there is no configuration {config_name}; {hint(config_name, names)}"
    if isinstance(error, MissingConfigException) and error.options:
        name = PurePosixPath(error.missing_cfg_file or "").name
        return f"{first_line(error)}; {_options_hint(name, list(error.options))}"
    if isinstance(error, yaml.YAMLError):
        return f"a configuration file is not valid YAML: {' '.join(str(error).split())}; correct it"
    reason = error if str(error) or error.__cause__ is None else error.__cause__
    key = getattr(reason, "full_key", None)
    return f"{key}: {first_line(reason)}" if key else said_of(reason)


def _unknown_hydra_key(alternative: _Alternative, composed: DictConfig) -> str:
    """Say which of Hydra's keys was meant: the nearest of all, or those of the same group that was chosen."""
    key = alternative.key
    valid = [f"hydra.{name}" for name in flat(OmegaConf.to_container(composed, resolve=False))]  # type: ignore[arg-type]
    group = key.rpartition(".")[0]
    choice = composed.runtime.choices.get(group.replace(".", "/"))
    whose = f"{group.replace('.', '/')}={choice}" if choice else "Hydra"
    siblings = [name for name in valid if name.rpartition(".")[0] == group] if choice else []
    close = hint(key, siblings or valid)
    if not siblings and not close.startswith("nearest"):
        close = "see --hydra-help"
    if whose == "hydra/sweeper=basic":
        close += "; a search has more: hydra/sweeper=hyperband"
    return f"{key}: {whose} has no such key; {close}"


def _unknown_key(alternative: _Alternative, config: DictConfig, schema: str) -> str:
    key = alternative.key
    valid = settable_keys(config, schema)
    groups = [group for group in _groups() if group != "hydra"]
    if "." not in key and _is_option(alternative.value, groups):
        return f"{alternative.text}: there is no such group; {hint(key, groups)}"
    return f"{key}: there is no such key; {hint_of_key(key, valid)}"


def hint_of_key(key: str, valid: Collection[str]) -> str:
    """Return what a name of other programs is called here, the nearest keys or, where none is near, those of the group.

    Where there are too many, say where all are to be seen.
    """
    group = key.rpartition(".")[0]
    siblings = [name for name in valid if group and name.rpartition(".")[0] == group]
    hints = (key_hint(key, names) for names in (valid, siblings) if names)
    few = (text for text in hints if len(text) <= LONGEST_HINT)
    return next(few, "see --cfg job for all keys")


def _options_hint(value: str, options: list[str]) -> str:
    close = hint(value, options)
    everything = f"all: {', '.join(sorted(options))}"
    return f"{close}; {everything}" if close.startswith("nearest") else everything


def _options(group: str, config_name: str | None, overrides: list[str]) -> list[str]:
    loader: ConfigLoader = GlobalHydra.instance().config_loader()
    if config_name is None and not overrides:
        # As the loader does, but for its copies of where configurations are found, which take a millisecond.
        found = (one.list(group, ObjectType.CONFIG) for one in loader.get_sources() if one.is_group(group))
        return sorted({name for names in found for name in names})
    searchpath = [override for override in overrides if override.startswith("hydra.searchpath")]
    return loader.get_group_options(group, ObjectType.CONFIG, config_name=config_name, overrides=searchpath)


def _groups(parent: str = "") -> list[str]:
    return GlobalHydra.instance().config_loader().list_groups(parent)


def _is_group(key: str) -> bool:
    return "." not in key and bool(_options(key, None, []) or _groups(key))


def _is_option(value: str, groups: list[str]) -> bool:
    return any(value in _options(group, None, []) for group in groups)
