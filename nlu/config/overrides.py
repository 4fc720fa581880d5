"""Say what is wrong with a command line that Hydra refused: all of it at once, each with the nearest valid name.

Hydra stops at the first override that does not fit. Here each override is added in turn to those that compose, so
that every one that does not fit is found, and what is left is validated as well.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import yaml
from hydra import compose, initialize_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.flat import flat
from nlu.config.nearest import hint
from nlu.config.resolve import first_line, resolve
from nlu.config.validate import RUN, known_keys, problems

USER_MISTAKES = (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError)
"""What Hydra raises, before a task starts, for a command line or configuration file that it cannot use."""


def override_problems(
    config_name: str, search_path: Sequence[str], overrides: Sequence[str], schema: str = RUN, is_multirun: bool = False
) -> list[str]:
    """Return every problem of a command line, as override, rule and remedy; empty when it composes and is valid.

    `search_path` holds URIs of configuration directories, such as `file:///conf`; earlier ones win. The values of a
    sweep are tried one by one, and refused without `is_multirun`. Hydra must not be initialised when this is called.
    """
    with initialize_config_search_path(search_path):
        return _Trial(config_name, is_multirun).run(list(overrides), schema)


@dataclass(frozen=True)
class _Alternative:
    """An override as it was given or, of a sweep, with one of its values."""

    text: str
    key: str
    value: str
    is_choice: bool


@dataclass
class _Trial:
    """Overrides that compose together so far, and what was wrong with the others."""

    config_name: str
    is_multirun: bool
    accepted: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    refused_groups: set[str] = field(default_factory=set)
    drawn: list[str] = field(default_factory=list)
    """overrides whose values only a search can draw"""

    def run(self, overrides: list[str], schema: str) -> list[str]:
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
            self.found += map(_interval_problem, self.drawn)
        for _, alternatives in parsed[len(choices) :]:
            config = self.accept(alternatives, config, schema)
        plain, unresolved = resolve(config)
        with_cross_rules = not self.refused_groups
        return self.found + unresolved + self.without_refused(problems(plain, schema, with_cross_rules))

    def parse(self, override: str) -> list[_Alternative]:
        try:
            parsed = OverridesParser.create().parse_overrides([override])[0]
            return self.alternatives(override, parsed)
        except OverrideParseException as error:
            self.found.append(grammar_problem(override, error))
        return []

    def alternatives(self, override: str, parsed: Override) -> list[_Alternative]:
        key = parsed.key_or_group
        changes = not (parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.is_list_extend())
        is_choice = changes and parsed.package is None and _is_group(key)
        if not parsed.is_sweep_override():
            value = "null" if parsed.value() is None else parsed.value()
            return [_Alternative(override, key, str(value), is_choice and not isinstance(value, list | dict))]
        if not self.is_multirun:
            self.found.append(_sweep_problem(override, key))
            self.refused_groups |= {key.replace("/", ".")} if is_choice else set()
        if self.is_multirun and not parsed.is_discrete_sweep():
            self.drawn.append(override)
        if not (self.is_multirun and parsed.is_discrete_sweep()):
            return []
        values = list(parsed.sweep_string_iterator())
        return [_Alternative(f"{parsed.get_key_element()}={value}", key, value, is_choice) for value in values]

    def accept_choice(self, alternatives: list[_Alternative]) -> None:
        good = []
        for choice in alternatives:
            problem = choice_problem(choice.key, choice.value, self.options) if choice.is_choice else None
            if problem is None:
                good.append(choice.text)
            else:
                self.found.append(problem)
        if good:
            self.accepted.append(good[0])
        else:
            self.refused_groups.add(alternatives[0].key.replace("/", "."))

    def options(self, group: str) -> list[str]:
        return _options(group, self.config_name, self.accepted)

    def compose_base(self) -> DictConfig | None:
        """Compose the choices; a group without one is left out, so that the rest can be judged."""
        while True:
            try:
                return self.compose()
            except USER_MISTAKES as error:
                group = _group_not_chosen(error)
                if group is None or f"~{group}" in self.accepted:
                    self.found.append(composition_problem(error, self.config_name))
                    return None
                options = self.options(group)
                if group not in self.refused_groups:
                    self.found.append(f"{group} is not chosen; set {group}=NAME, one of: {', '.join(options)}")
                self.refused_groups.add(group)
                self.accepted.append(f"~{group}")

    def accept(self, alternatives: list[_Alternative], config: DictConfig, schema: str) -> DictConfig:
        good = None
        for alternative in alternatives:
            try:
                composed = self.compose(alternative.text)
            except USER_MISTAKES as error:
                # The keys of a group are not known when its choice was refused.
                if not f"{alternative.key}.".startswith(tuple(f"{group}." for group in self.refused_groups)):
                    self.found.append(self.refusal(alternative, error, config, schema))
            else:
                good = good or (alternative.text, composed)
        if good is None:
            return config
        self.accepted.append(good[0])
        return good[1]

    def compose(self, *more: str) -> DictConfig:
        return compose(self.config_name, overrides=[*self.accepted, *more])

    def refusal(self, alternative: _Alternative, error: Exception, config: DictConfig, schema: str) -> str:
        if alternative.key.startswith("hydra.") and _is_about_key(error):
            return _unknown_hydra_key(alternative, self.compose_hydra())
        return _refusal(alternative, error, config, schema)

    def compose_hydra(self) -> DictConfig:
        return compose(self.config_name, overrides=self.accepted, return_hydra_config=True).hydra

    def without_refused(self, found: list[str]) -> list[str]:
        starts = tuple(f"{group}{after}" for group in self.refused_groups for after in (".", " ", ":", "["))
        return [problem for problem in found if not problem.startswith(starts)]


def choice_problem(group: str, choice: str, options_of: Callable[[str], list[str]]) -> str | None:
    """Return what is wrong with the choice of a group, `options_of` giving all of a group; None where there is it."""
    path = PurePosixPath(group) / choice
    options = options_of(str(path.parent))
    if path.name in options or choice == "null":
        return None
    return f"{group}={choice}: there is no such choice; {_options_hint(choice, options)}"


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
    if str(error).startswith("Additional config directory"):
        return f"{first_line(error)}; give --config-dir a folder that is there"
    reason = error if str(error) or error.__cause__ is None else error.__cause__
    key = getattr(reason, "full_key", None)
    return f"{key}: {first_line(reason)}" if key else first_line(reason)


def _refusal(alternative: _Alternative, error: Exception, config: DictConfig, schema: str) -> str:
    message, key = str(error), alternative.key
    if _is_about_key(error):
        return _unknown_key(alternative, config, schema)
    if "does not exist" in message or "No match in the defaults list" in message:
        return f"{alternative.text}: there is no {key}; {few(hint(key, known_keys(resolve(config)[0], schema)))}"
    if message.startswith("Could not append to config. An item is already at"):
        return f"{alternative.text}: {key} is there already; write {key}={alternative.value}"
    if message.startswith("Error merging") and error.__cause__ is not None:
        return f"{alternative.text}: {first_line(error.__cause__)}; set {key} to a value that fits"
    return f"{alternative.text}: {' '.join(message.split())}"


def _is_about_key(error: Exception) -> bool:
    return str(error).startswith(("Could not override", "Could not delete")) and error.__cause__ is not None


def _unknown_hydra_key(alternative: _Alternative, composed: DictConfig) -> str:
    """Say which of Hydra's keys was meant: the nearest of all, or those of the same group that was chosen."""
    key = alternative.key
    valid = [f"hydra.{name}" for name in flat(OmegaConf.to_container(composed, resolve=False))]  # type: ignore[arg-type]
    if any(f"{name}.".startswith(f"{key}.") for name in valid):
        return f"{alternative.text}: {key} has no such keys yet; add them with +{alternative.text}"
    group = key.rpartition(".")[0]
    choice = composed.runtime.choices.get(group.replace(".", "/"))
    whose = f"{group.replace('.', '/')}={choice}" if choice else "Hydra"
    siblings = [name for name in valid if name.rpartition(".")[0] == group] if choice else []
    close = hint(key, siblings or valid)
    if not siblings and not close.startswith("nearest"):
        close = "see --hydra-help"
    return f"{key}: {whose} has no such key; {close}"


def _unknown_key(alternative: _Alternative, config: DictConfig, schema: str) -> str:
    key = alternative.key
    valid = known_keys(resolve(config)[0], schema)
    if key in valid:
        return f"{key} is not in this configuration yet; add it with +{alternative.text}"
    groups = [group for group in _groups() if group != "hydra"]
    if "." not in key and _is_option(alternative.value, groups):
        return f"{alternative.text}: there is no such group; {hint(key, groups)}"
    return f"{key}: there is no such key; {few(hint(key, valid))}"


def _sweep_problem(override: str, key: str) -> str:
    value = override.partition("=")[2]
    return (
        f"{override}: several values need --multirun; for a list write '{key}=[{value}]', "
        f"for one text quote it for Hydra as well: '{key}=\"{value}\"'"
    )


def _interval_problem(override: str) -> str:
    return (
        f"{override}: a grid cannot draw from an interval; for a search set hydra/sweeper=hyperband, for a grid list "
        f"the values: {override.partition('=')[0]}=VALUE,VALUE"
    )


def few(text: str) -> str:
    """Return a hint as it is, or where all keys are to be seen if it lists too many."""
    return text if len(text) <= 200 else "see --cfg job for all keys"


def grammar_problem(override: str, error: OverrideParseException) -> str:
    """Return what cannot be read in an override, and what to write instead."""
    if (function := re.search(r"Unknown function '(.+?)'", error.message)) is not None:
        valid = re.search(r"Available: (.+)", error.message)
        close = hint(function[1], valid[1].strip().split(",") if valid else [])
        return f"{override} cannot be read: there is no function {function[1]}; {close}"
    lines = error.message.splitlines()[1:]
    details = [line for line in lines if not line.startswith(("See https://", "Error parsing override"))]
    carets = [line for line in details if line.strip() == "^"]
    key, equals, value = override.partition("=")
    if not equals and not override.startswith("~"):
        return f"{override}: the value is missing; write {override}=VALUE"
    if value.startswith("choice(") and "NoneType is incompatible" in error.message:
        listed = value.removeprefix("choice(").removesuffix(")")
        return f"{override} cannot be read: choice() takes no null; list the values alone: '{key}={listed}'"
    if value == "choice()":
        return f"{override} cannot be read: there is nothing to choose from; write '{key}=choice(VALUE,VALUE)'"
    where = f"a character that cannot stand there: {_at_caret(override, carets[0])}" if carets else " ".join(details)
    if any(value.count(opening) != value.count(closing) for opening, closing in ("{}", "[]", "()")):
        remedy = "its brackets do not close; close them, and quote the whole for the shell"
    elif value.startswith("{") and (escaped := _KEY_WITH_EQUALS.sub(r"\1\\=", value)) != value:
        remedy = f"inside the brackets a key has \\= for =: '{key}={escaped}'"
    elif value.startswith(("{", "[")):
        example = '{name: "a=b"}' if value.startswith("{") else '["a=b"]'
        remedy = (
            "put what holds special characters inside the brackets in quotation marks, and the whole in others for the "
            f"shell, as in '{key}={example}'"
        )
    else:
        remedy = f"quote the value for the shell and for Hydra: '{key}=\"{value}\"'"
    return f"{override} cannot be read: {where}; {remedy}"


_KEY_WITH_EQUALS = re.compile(r"([{,]\s*[^:{},\"'=\\]+)=(?=[^:{},\"'=]+:)")


def _at_caret(override: str, caret: str) -> str:
    position = len(caret) - 1 - len("LexerNoViableAltException: ")
    return f"{override[position : position + 1]!r} at column {position + 1}"


def _group_not_chosen(error: Exception) -> str | None:
    _, _, rest = str(error).partition("You must specify '")
    return rest.partition("'")[0] or None


def _options_hint(value: str, options: list[str]) -> str:
    close = hint(value, options)
    everything = f"all: {', '.join(sorted(options))}"
    return f"{close}; {everything}" if close.startswith("nearest") else everything


def _options(group: str, config_name: str | None, overrides: list[str]) -> list[str]:
    loader: ConfigLoader = GlobalHydra.instance().config_loader()
    searchpath = [override for override in overrides if override.startswith("hydra.searchpath")]
    return loader.get_group_options(group, ObjectType.CONFIG, config_name=config_name, overrides=searchpath)


def _groups(parent: str = "") -> list[str]:
    return GlobalHydra.instance().config_loader().list_groups(parent)


def _is_group(key: str) -> bool:
    return "." not in key and bool(_options(key, None, []) or _groups(key))


def _is_option(value: str, groups: list[str]) -> bool:
    return any(value in _options(group, None, []) for group in groups)
