"""Checks of Hydra's own keys before Hydra builds or writes anything: no foreign code, no results in the wrong place.

Commands that only show something skip them. Hydra's whitelist, which `whitelist` fills, is the second line of defense.
"""

import inspect
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.plugin import Plugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from nlu.config.addresses import is_object
from nlu.config.command_line import sweep_problem
from nlu.config.compose import Composed
from nlu.config.foreign import key_elsewhere
from nlu.config.nearest import hint
from nlu.config.redaction import credential_problems
from nlu.config.resolving import as_given, as_written
from nlu.config.targets import TARGET, trusted

LONGEST_NAME = 255
"""bytes that the name of a folder may have in Linux's file systems"""
OWN = (
    "nlu",
    "hydra_plugins",
    "hydra.experimental",
    "optuna.samplers",
    "logging",
    "sys.stdout",
    "sys.stderr",
)
"""What Hydra's keys may name besides installed plugins."""
_SWEEPERS = ("hydra_plugins.grid_sweeper.", "hydra_plugins.hyperband_sweeper.", "hydra._internal.core_plugins.")
_FACTORIES = (TARGET, "()", "class")
"""Keys of callbacks, launchers, sweepers and logging that name a callable."""


def problems_of_hydra(composed: Composed, is_multirun: bool) -> list[str]:
    """Return every problem of Hydra's keys, and what the sweeper finds wrong.

    A sweeper that can tell without composing a job has a static method `problems`, which gets the overrides of its
    jobs.
    """
    config = composed.config
    with current_config(config):
        found = list(_problems(config, composed.overrides, is_multirun=is_multirun))
        # Without another problem the sweeper reports its own, with those of its jobs.
        if (
            is_multirun
            and (found or composed.problems)
            and (find := getattr(_sweeper_of(config), "problems", None)) is not None
        ):
            of_jobs = [one for one in composed.overrides if not one.key_or_group.startswith(("hydra.", "hydra/"))]
            found += find(config, [str(one.input_line) for one in of_jobs], GlobalHydra.instance().config_loader())
    return found


def _sweeper_of(config: DictConfig) -> type[Plugin] | None:
    sweepers = {f"{each.__module__}.{each.__name__}": each for each in Plugins.instance().discover(Sweeper)}
    return sweepers.get(config.hydra.sweeper.get(TARGET))


def _problems(config: DictConfig, parsed: Sequence[Override], *, is_multirun: bool) -> Iterator[str]:
    is_launched = not is_multirun and is_sent(config)
    yield from _unknown(config, parsed)
    yield from _foreign(config)
    yield from place_problems(config, "sweep" if is_multirun else "run")
    yield from _secrets(config)
    if is_launched:
        yield from _several_values(parsed)
        resume, mirror = (OmegaConf.select(config, key, default=None) for key in ("resume", "mirror"))
        if (problem := unnamed_folder_problem(resume, mirror, config.hydra)) is not None:
            # Otherwise its job would report this only after its time in the queue.
            yield problem
    yield from _foreign_sweeper(config) if is_multirun else _search_without_multirun(config, parsed, is_launched)


def is_sent(config: DictConfig) -> bool:
    """Return whether a single run goes to a launcher."""
    return _is_launched(config) and not _is_dry_run(config)


def send(config: DictConfig) -> None:
    """Make a configuration that of a --multirun whose only job is the run that it describes.

    Hydra calls launchers only for a --multirun. The records of the submission go into the run's folder, unless that is
    the working folder, as for nlu.preprocess.
    """
    with current_config(config):
        is_here = os.path.abspath(str(config.hydra.run.dir)) == os.getcwd()
    own = [] if is_here else ["++hydra.sweep.dir=${hydra.run.dir}"]
    with read_write(config.hydra):
        if own:
            config.hydra.sweep.dir = "${hydra.run.dir}"
        config.hydra.sweep.subdir = "."
        # Hydra composes the job with these too.
        config.hydra.overrides.hydra = [
            *as_given(config.hydra.overrides.hydra),
            *own,
            "++hydra.sweep.subdir=.",
            "++hydra.mode=MULTIRUN",
        ]


def _unknown(config: DictConfig, overrides: Sequence[Override]) -> Iterator[str]:
    """Yield a problem for each key that is given but that Hydra, its sweeper or its launcher does not have."""
    # Hydra refuses keys of files itself, except those of a sweeper without a dataclass.
    in_files = (f"hydra.sweeper.{name}" for name in config.hydra.sweeper)
    for key in dict.fromkeys([*(override.key_or_group for override in overrides), *in_files]):
        *parents, name = key.split(".")
        parent = ".".join(parents)
        if parents[:1] != ["hydra"] or (known := _keys_of(config, parent)) is None or name in known:
            continue
        group = parent.replace(".", "/")
        choice = config.hydra.runtime.choices.get(group)
        close = key_elsewhere(key) or hint(key, [f"{parent}.{each}" for each in known])
        more = "; a search has more: hydra/sweeper=hyperband" if (group, choice) == ("hydra/sweeper", "basic") else ""
        yield f"{key}: {f'{group}={choice}' if choice else 'Hydra'} has no such key; {close}{more}"


def _keys_of(config: DictConfig, parent: str) -> Collection[str] | None:
    """Return the keys of a node of Hydra; None if it takes any, as hydra.job.env_set does."""
    try:
        node = OmegaConf.select(config, parent, throw_on_resolution_failure=False)
    except (TypeError, OmegaConfBaseException):
        return ()
    kind = OmegaConf.get_type(node) if isinstance(node, DictConfig) else None
    if node is None or not isinstance(node, DictConfig):
        return ()
    if is_dataclass(kind):
        return [each.name for each in fields(kind)]
    if (plugin := _sweeper_of(config)) is not None and parent == "hydra.sweeper":
        return [TARGET, *inspect.signature(plugin).parameters]
    return None


def whitelist() -> list[str]:
    """Return the patterns of classes that Hydra may build, for its `execution_whitelist`."""
    return [f"{package}.*" for package in (*OWN, *_installed(), *trusted())]


def place_problems(config: DictConfig, group: str) -> Iterator[str]:
    """Yield a problem if `hydra.run` or `hydra.sweep` is an address, or too long a name. `group`: run or sweep."""
    for key in ("dir", "subdir") if group == "sweep" else ("dir",):
        # Hydra reports an interpolation that fails.
        with _ignored():
            if "://" in (place := str(config.hydra[group][key])):
                kept = f", and mirror={place} to have it kept there" if is_object(place) else ""
                yield (
                    f"hydra.{group}.{key} is {place}, but a run writes into a local folder; set "
                    f"hydra.{group}.{key} to a local folder{kept}"
                )
            elif (length := max(len(os.fsencode(name)) for name in place.split(os.sep))) > LONGEST_NAME:
                left_out = ""
                if "override_dirname" in str(OmegaConf.to_container(config.hydra[group], resolve=False)):
                    left_out = "; leave out keys by 'hydra.job.config.override_dirname.exclude_keys=[KEY]'"
                yield (
                    f"hydra.{group}.{key} makes a name of {length} bytes, but a name of a folder may have "
                    f"{LONGEST_NAME}{left_out or f'; set hydra.{group}.{key} to a shorter one'}"
                )


def unnamed_folder_problem(resume: object, mirror: object, hydra: DictConfig) -> str | None:
    """Return a problem if a run is to continue in a folder that is new each time."""
    group = "sweep" if hydra.mode == RunMode.MULTIRUN else "run"
    plain = OmegaConf.to_container(hydra[group], resolve=False)
    assert isinstance(plain, dict)
    folder = plain["dir"]
    # A run in a mirror continues in any folder.
    if resume != "auto" or mirror is not None or "${now:" not in folder:
        return None
    return (
        f"resume is auto, but hydra.{group}.dir is the default, a new folder each time; "
        f"set hydra.{group}.dir to the folder to continue"
    )


def occupied_folder_problem(resume: object, run_dir: Path) -> str | None:
    """Return a problem if a new run would find another run in its folder."""
    # The run itself checks more (nlu.runs.folder), but only after importing torch.
    if resume != "never" or not (run_dir / "config.yaml").is_file():
        return None
    return (
        f"the folder of this run is {run_dir}, which holds a run; set resume=auto to continue that, or choose another "
        "hydra.run.dir"
    )


def _secrets(config: DictConfig) -> Iterator[str]:
    """Yield a problem for each secret in Hydra's keys. Jobs inherit secrets from the environment instead."""
    plain = as_written(config.hydra)
    # Hydra copies these from the environment.
    copied = plain["job"].get("env_copy") or []
    plain["job"]["env_set"] = {name: value for name, value in plain["job"]["env_set"].items() if name not in copied}
    keys = ("run", "sweep", "launcher", "sweeper", "callbacks", "hydra_logging", "job_logging")
    said = {**{key: plain.get(key) for key in keys}, "job": {"env_set": plain["job"]["env_set"]}}
    return credential_problems(said, "hydra")


def _foreign(config: DictConfig) -> Iterator[str]:
    allowed = (*OWN, *_installed(), *trusted())
    for key, target in _named("hydra", config.hydra):
        if not f"{target}.".startswith(tuple(f"{package}." for package in allowed)):
            package = target.partition(".")[0]
            yield (
                f"{key} is {target}, which is outside nlu, Hydra and its installed plugins; if you trust {package}, "
                f"add it: trusted_packages=[{package}]"
            )


def _named(prefix: str, node: DictConfig | ListConfig) -> Iterator[tuple[str, str]]:
    """Yield the full key and the value of each key that names a callable."""
    keys = range(len(node)) if isinstance(node, ListConfig) else list(node)
    for key in keys:
        full_key = f"{prefix}[{key}]" if isinstance(node, ListConfig) else f"{prefix}.{key}"
        # A missing or unresolvable value cannot be built either, and there still is the whitelist.
        with _ignored():
            value = node[key]
            if isinstance(value, DictConfig | ListConfig):
                yield from _named(full_key, value)
            elif isinstance(value, str) and (key in _FACTORIES or value.startswith("ext://")):
                yield full_key, value.removeprefix("ext://")


def _is_launched(config: DictConfig) -> bool:
    return config.hydra.runtime.choices.get("hydra/launcher") not in ("basic", None)


def _is_dry_run(config: DictConfig) -> bool:
    with _ignored():
        return config.get("dry_run") is True
    return False


def _search_without_multirun(config: DictConfig, overrides: Sequence[Override], is_launched: bool) -> Iterator[str]:
    """Yield a problem if the command line asks for a search without --multirun.

    An experiment may choose a sweeper, since a single run prepares the data of a search. But a run for a launcher
    would become a search.
    """
    sweeper = config.hydra.runtime.choices.get("hydra/sweeper")
    is_asked_for = is_launched or any(override.key_or_group == "hydra/sweeper" for override in overrides)
    if sweeper not in ("basic", None) and is_asked_for:
        yield (
            f"hydra/sweeper is {sweeper}, but without --multirun the command is one run and searches nothing; add "
            "--multirun, or set hydra/sweeper=basic"
        )


def _several_values(overrides: Sequence[Override]) -> Iterator[str]:
    """Yield a problem for each override of several values: a launcher takes a single run."""
    for override in overrides:
        if override.is_sweep_override():
            yield sweep_problem(str(override.input_line), override.key_or_group)


def _foreign_sweeper(config: DictConfig) -> Iterator[str]:
    """Yield a problem if another sweeper would take the exit code that a job returns for its score."""
    name = config.hydra.runtime.choices.get("hydra/sweeper")
    with _ignored():
        if not str(config.hydra.sweeper.get(TARGET)).startswith(_SWEEPERS):
            yield (
                f"hydra/sweeper is {name}, which would search blindly: a run reports its scores only to nlu's own "
                "sweepers; choose hydra/sweeper=hyperband, which searches with Optuna and prunes"
            )


def _installed() -> set[str]:
    """Return the packages of installed plugins, and the full names of those that come with Hydra."""
    plugins = Plugins.instance().discover()
    # Not all of Hydra, since some of its functions call any other one: only its plugins.
    packages = {plugin.__module__.partition(".")[0] for plugin in plugins} - {"hydra"}
    return packages | {f"{plugin.__module__}.{plugin.__name__}" for plugin in plugins}


@contextmanager
def current_config(config: DictConfig) -> Iterator[None]:
    """Make `${hydra:...}` refer to this configuration."""
    current = HydraConfig.instance()
    outer = current.cfg
    current.set_config(config)
    try:
        yield
    finally:
        current.cfg = outer


@contextmanager
def _ignored() -> Iterator[None]:
    try:
        yield
    except OmegaConfBaseException:
        return
