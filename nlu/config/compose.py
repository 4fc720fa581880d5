"""Compose a configuration once: overrides that name unknown keys compose too, and every problem is reported after.

Hydra stops at the first override that does not fit. So `KEY=VALUE` is given to it as `++KEY=VALUE`, which sets a key
whether a file has it or not. A wrong choice of a group is left out. What is unknown or wrong is found afterwards, in
the composed configuration. Defaults come from the schemas of `nlu.config.keys`; YAML files hold what differs.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from nlu.config.checks.composition_faults import SETS_OF_KEYS, choice_problem, fault_of, misplaced
from nlu.config.checks.validate import show
from nlu.config.choices import RUN, SCHEMAS, conf_dir, with_defaults
from nlu.config.command_line import USER_MISTAKES, overrides_of_sweep, read_override, rejoined, sweep_problem
from nlu.config.errors import UserError
from nlu.config.foreign import hint_of_key
from nlu.config.keys import schema_of
from nlu.config.resolving import MISSING, as_given, as_written, first_line
from nlu.config.targets import trust


class Loader(ConfigLoaderImpl):
    """Hydra's loader, with tolerant overrides and the defaults of the schemas.

    `schema` is the dotted name of the dataclass of the command's top-level keys.
    """

    def __init__(self, config_search_path: ConfigSearchPath, schema: str = RUN) -> None:
        super().__init__(config_search_path)
        self.schema = schema
        self.problems: list[str] = []
        """what is wrong with values of Hydra's keys in the last configuration, which has the defaults in their place"""

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *args: bool, **options: bool
    ) -> DictConfig:
        """Compose as Hydra does. Keys that do not exist are set too; `nlu.config.checks.validate` refuses them."""
        of_hydra = [text for text in overrides if _is_of_hydra(text)]
        tolerant = self._tolerant([text for text in overrides if text not in of_hydra])
        config = super().load_configuration(config_name, list(tolerant), run_mode, *args, **options)
        self.problems = list(_set_in_hydra(config, of_hydra))
        with open_dict(config), read_write(config.hydra):
            # Hydra has copied only those that files name.
            for name in {*config.hydra.job.env_copy} & {*os.environ}:
                config.hydra.job.env_set[name] = os.environ[name]
        return self._completed(config, tolerant)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Compose a job of a sweep; see `load_configuration`."""
        tolerant = self._tolerant(sweep_overrides)
        return self._completed(super().load_sweep_config(master_config, list(tolerant)), tolerant)

    def _tolerant(self, overrides: Sequence[str]) -> dict[str, str]:
        """Return overrides that set and delete keys whether these exist or not, each with the one that was given.

        Choices stay as they are. A key is set before it is deleted, since Hydra deletes only what there is; for this
        further override nothing was given, "".
        """
        found: dict[str, str] = {}
        for text in overrides:
            key, equals, _ = text.lstrip("+~").partition("=")
            if self.is_choice(key) or key.startswith("hydra.searchpath") or text.startswith("++"):
                found[text] = text
            elif text.startswith("~"):
                found |= {text: text} if equals else {f"++{key}=null": "", text: text}
            else:
                found[f"++{text.lstrip('+')}" if equals else text] = text
        return found

    def is_choice(self, key: str) -> bool:
        """Return whether the key of an override names a group of this command."""
        group, _, package = key.partition("@")
        if "." in group or "=" in group:
            return False
        if "/" in group or package:
            return True
        known = schema_of(self.schema).keys
        own = group in known or (group in SETS_OF_KEYS and "trainer" in known)
        # All our commands share the folder of groups, but each has only some. Any other group is a user's own.
        if not own and self.schema in SCHEMAS.values() and (conf_dir() / group).is_dir():
            return False
        return any(source.is_group(group) for source in self.get_sources())

    def options(self, group: str, overrides: Sequence[str] = ()) -> list[str]:
        """Return the choices of a group, with those in the folders of `hydra.searchpath` among `overrides`."""
        path = [text for text in overrides if text.startswith("hydra.searchpath")]
        if path:
            return self.get_group_options(group, ObjectType.CONFIG, overrides=path)
        found = (source.list(group, ObjectType.CONFIG) for source in self.get_sources() if source.is_group(group))
        return sorted({name for names in found for name in names})

    def _completed(self, config: DictConfig, given: dict[str, str]) -> DictConfig:
        """Return a configuration with the defaults of its schemas, and its overrides as they were given.

        Those of Hydra's own keys stay tolerant, since Hydra composes each job of a sweep with them.
        """
        with read_write(config.hydra):
            texts = (given.get(text, text) for text in as_given(config.hydra.overrides.task))
            config.hydra.overrides.task = [text for text in texts if text]
        plain = as_written(config)
        del plain["hydra"]
        trust(plain)
        with open_dict(config), read_write(config):
            # A choice of `model` brings the optimizer that trains it, which a command that only uses it lacks.
            if "optimizer" not in schema_of(self.schema).keys and not isinstance(plain.get("optimizer", ""), str):
                del config["optimizer"], plain["optimizer"]
            for key, value in with_defaults(plain, self.schema, unset=MISSING).items():
                # Nodes are replaced only where a default was missing.
                if key not in plain or value != plain[key]:
                    config[key] = value
        return config


def _is_of_hydra(override: str) -> bool:
    key = override.lstrip("+").partition("=")[0]
    return key.startswith("hydra.") and not key.startswith("hydra.searchpath")


def _set_in_hydra(config: DictConfig, overrides: Sequence[str]) -> Iterator[str]:
    """Set keys of Hydra in a composed configuration; yield a problem for each value that breaks the type of its key.

    Hydra itself would stop at the first one.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group, override.value()
        try:
            with open_dict(config), read_write(config.hydra):
                OmegaConf.update(config, key, value, merge=True, force_add=True)
        except OmegaConfBaseException as error:
            yield f"{key} is {show(value)}, but {first_line(error)}; correct it"
            continue
        with read_write(config.hydra):
            given = as_given(config.hydra.overrides.hydra)
            config.hydra.overrides.hydra = [*given, f"++{str(override.input_line).lstrip('+')}"]


@dataclass
class Composed:
    """A command line, composed once."""

    config: DictConfig
    """with the node `hydra`"""
    overrides: list[Override]
    """those that can be read"""
    problems: list[str] = field(default_factory=list)
    """what is wrong with single overrides"""
    refused: set[str] = field(default_factory=set)
    """groups whose choice does not exist; their default stands in, so their keys are not checked"""


def compose(loader: Loader, config_name: str, overrides: Sequence[str], *, is_multirun: bool) -> Composed:
    """Compose a command line once. Raises UserError if no configuration can be composed at all."""
    whole, torn = rejoined(overrides)
    line = _Line(loader, overrides, torn, is_multirun)
    texts = [text for override in whole for text in line.usable(override)]
    mode = RunMode.MULTIRUN if is_multirun else RunMode.RUN
    try:
        config = _explained(partial(loader.load_configuration, config_name, texts, mode), loader, config_name, texts)
    except UserError as error:
        raise UserError(*line.problems, *error.problems) from error
    return Composed(config, line.read, [*line.problems, *loader.problems], line.refused)


def _explained(
    load: Callable[[], DictConfig], loader: ConfigLoader, config_name: str, overrides: Sequence[str]
) -> DictConfig:
    """Return what `load` composes. Raises UserError if it cannot be composed, or if keys are misplaced in a file."""
    try:
        config = load()
    # A file that includes itself is followed for ever.
    except (RecursionError, *USER_MISTAKES) as error:
        raise UserError(fault_of(error, config_name, loader, overrides)) from error
    if found := misplaced(config, config_name, loader, overrides):
        raise UserError(*found)
    return config


class _Line:
    """Reads the overrides of a command line, and keeps the problems of those that cannot be used."""

    def __init__(self, loader: Loader, given: Sequence[str], problems: Sequence[str], is_multirun: bool):
        self.loader, self.given, self.is_multirun = loader, given, is_multirun
        self.problems = list(problems)
        self.refused: set[str] = set()
        self.read: list[Override] = []

    def usable(self, override: str) -> Iterator[str]:
        """Yield the override as Hydra gets it, or nothing if it cannot be used."""
        try:
            parsed = read_override(override)
        except UserError as error:
            self.problems += error.problems
            return
        self.read.append(parsed)
        key = parsed.key_or_group
        if parsed.is_sweep_override():
            if not self.is_multirun:
                self.problems.append(sweep_problem(override, key))
                return
            if key.startswith("hydra."):
                self.problems.append(
                    f"{override}: all jobs share the keys of Hydra; give {key} one value, or a list: [...]"
                )
                return
        is_choice = self.loader.is_choice(key)
        if is_choice and parsed.package is None and not parsed.is_delete():
            yield from self.choices(override, parsed)
        elif not is_choice and "." not in key and self.loader.options(key):
            # A group that this command does not have.
            known = schema_of(self.loader.schema).keys
            self.problems.append(f"{key}: unknown key; {hint_of_key(key, known, self.loader.schema)}")
        else:
            yield override

    def choices(self, override: str, parsed: Override) -> Iterator[str]:
        """Yield the choice of a group without the names that do not exist."""
        group = parsed.key_or_group
        if parsed.is_sweep_override() and not parsed.is_discrete_sweep():
            yield override
            return
        if parsed.is_sweep_override():
            names = [text.partition("=")[2] for text in overrides_of_sweep(parsed)]
        else:
            value = "null" if parsed.value() is None else parsed.value()
            if isinstance(value, dict):
                named = ", ".join(f"{group}.{key}=VALUE" for key in value)
                self.problems.append(f"{override}: {group} takes the name of a choice; set keys one by one: {named}")
                return
            names = list(map(str, value)) if isinstance(value, list) else [str(value)]
        wrong = {name: self.problem(group, name) for name in names}
        found = [problem for problem in wrong.values() if problem is not None]
        if not found:
            yield override
            return
        self.problems += found
        self.refused.add(group.replace("/", "."))

    def problem(self, group: str, name: str) -> str | None:
        if name == "null" and group in SETS_OF_KEYS:
            return None
        return choice_problem(group, name.strip("'\""), lambda path: self.loader.options(path, self.given))


def compose_job(loader: ConfigLoader, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of a job of a sweep, with the node `hydra`. Raises UserError if it cannot be composed.

    `master` is the configuration of the sweep.
    """
    texts = [*as_given(master.hydra.overrides.hydra), *overrides]
    load = partial(loader.load_sweep_config, master, list(overrides))
    return _explained(load, loader, str(master.hydra.job.config_name), texts)
