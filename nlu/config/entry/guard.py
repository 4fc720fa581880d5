"""What must hold of Hydra's own keys before Hydra builds or writes anything: nothing foreign, nothing lost.

The configuration is composed for it before Hydra starts, which composes it again in a hundredth of a second, since
what its files make together is remembered (nlu.config.hydra_private). A command that only shows something does without.
Behind it stands Hydra's own whitelist, which `whitelist` fills.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import initialize_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.checks.composing import compose
from nlu.config.checks.reading import first_values, sweep_problem
from nlu.config.errors import UserError
from nlu.config.targets import TARGET
from nlu.storage.places import is_object
from nlu.storage.redaction import credential_problems

OWN = (
    "nlu", "hydra_plugins", "hydra.experimental", "optuna.samplers", "logging",
    "sys.stdout", "sys.stderr",
)  # fmt: skip
"""What Hydra's keys may name: ours, installed plugins, Hydra's own, the samplers of its choices, Python's logging."""
_SWEEPERS = ("hydra_plugins.grid_sweeper.", "hydra_plugins.hyperband_sweeper.", "hydra._internal.core_plugins.")
_FACTORIES = (TARGET, "()", "class")
"""keys of callbacks, launchers and sweepers, and of logging, that name what is to be called"""


@dataclass(frozen=True)
class Known:
    """What is known of a command before Hydra starts."""

    trusted: list[str]
    """the packages that its configuration trusts"""
    handed_over: str | None
    """the folder of the one run that a launcher is to take; None of any other command"""


def require_safe(config_name: str, search_path: Sequence[str], overrides: Sequence[str], is_multirun: bool) -> Known:
    """Return what is known of a command. Raises UserError with all that is wrong with Hydra's keys.

    `search_path` holds URIs of configuration directories. What does not compose raises what Hydra raises.
    """
    with initialize_config_search_path(list(search_path)):
        config = compose(config_name, first_values(overrides), with_hydra=True)
        parsed = OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(list(overrides))
    is_multirun = is_multirun or config.hydra.mode == RunMode.MULTIRUN
    trusted = [str(package) for package in OmegaConf.select(config, "trusted_packages", default=None) or ()]
    with current_config(config):
        group = "sweep" if is_multirun else "run"
        is_handed_over = not is_multirun and _is_launched(config) and not _is_dry_run(config)
        found = [*_foreign(config, trusted), *place_problems(config, group), *_moved(config), *_secrets(config)]
        found += [*_single(parsed)] if is_handed_over else []
        resume, mirror = (OmegaConf.select(config, key, default=None) for key in ("resume", "mirror"))
        if is_handed_over and (problem := unnamed_folder_problem(resume, mirror, config.hydra)):
            # Its job may wait for hours before it could say so.
            found.append(problem)
        found += _scored(config) if is_multirun else _searches_nothing(config, parsed, is_handed_over)
        if found:
            raise UserError(*found)
        return Known(trusted, str(config.hydra.run.dir) if is_handed_over else None)


def handed_over(overrides: Sequence[str], run_dir: str) -> list[str]:
    """Return the overrides of a --multirun whose one job is the run that these overrides ask for.

    Hydra asks a launcher for nothing else. What is written of the submission goes into the run's own folder, unless
    that is the working folder, as it is of nlu.preprocess.
    """
    own = [] if os.path.abspath(run_dir) == os.getcwd() else ["hydra.sweep.dir=${hydra.run.dir}"]
    return [*overrides, *own, "hydra.sweep.subdir=."]


def whitelist(trusted: Sequence[str]) -> list[str]:
    """Return the patterns of what Hydra may build, for its `execution_whitelist`."""
    return [f"{package}.*" for package in (*OWN, *_installed(), *trusted)]


def place_problems(config: DictConfig, group: str) -> Iterator[str]:
    """Yield a problem where `hydra.run` or `hydra.sweep` is no folder of this machine. `group`: run or sweep."""
    for key in ("dir", "subdir") if group == "sweep" else ("dir",):
        # An interpolation that fails is Hydra's to report.
        with _passed_over():
            if "://" in (place := str(config.hydra[group][key])):
                kept = f", and mirror={place} to have it kept there" if is_object(place) else ""
                yield (
                    f"hydra.{group}.{key} is {place}, but a run writes into a folder of this machine; set "
                    f"hydra.{group}.{key} to a local folder{kept}"
                )


def unnamed_folder_problem(resume: Any, mirror: Any, hydra: DictConfig) -> str | None:
    """Return a problem where a run is to be continued in a folder that is a new one each time."""
    group = "sweep" if hydra.mode == RunMode.MULTIRUN else "run"
    folder = OmegaConf.to_container(hydra[group], resolve=False)["dir"]  # type: ignore[index, call-overload]
    # What a mirror holds is gone on with in any folder.
    if resume != "auto" or mirror is not None or "${now:" not in folder:
        return None
    return (
        f"resume is auto, but hydra.{group}.dir is the default, a new folder each time; "
        f"set hydra.{group}.dir to the folder to continue"
    )


def occupied_folder_problem(resume: Any, run_dir: Path) -> str | None:
    """Return a problem where a run that is to begin would find another in its folder."""
    # A run looks more closely when it begins (nlu.runs.folder), which takes importing torch.
    if resume != "never" or not (run_dir / "config.yaml").is_file():
        return None
    return (
        f"the folder of this run is {run_dir}, which holds a run; set resume=auto to continue that, or choose another "
        "hydra.run.dir"
    )


def _moved(config: DictConfig) -> Iterator[str]:
    if OmegaConf.select(config, "hydra.job.chdir", default=None):
        yield (
            "hydra.job.chdir is true, which would look for data.train and all other paths in the run's folder; "
            "set hydra.job.chdir=null: what a run writes goes into hydra.run.dir anyway"
        )


def _secrets(config: DictConfig) -> Iterator[str]:
    """Yield a problem for each secret in what Hydra's keys say: jobs inherit the environment, nothing else hides it."""
    plain: Any = OmegaConf.to_container(config.hydra, resolve=False, enum_to_str=True)
    # These Hydra copies from the environment by itself.
    copied = plain["job"].get("env_copy") or []
    plain["job"]["env_set"] = {name: value for name, value in plain["job"]["env_set"].items() if name not in copied}
    keys = ("run", "sweep", "launcher", "sweeper", "callbacks", "hydra_logging", "job_logging")
    said = {**{key: plain.get(key) for key in keys}, "job": {"env_set": plain["job"]["env_set"]}}
    return credential_problems(said, "hydra")


def _foreign(config: DictConfig, trusted: Sequence[str]) -> Iterator[str]:
    allowed = (*OWN, *_installed(), *trusted)
    for key, target in _named("hydra", config.hydra):
        if not f"{target}.".startswith(tuple(f"{package}." for package in allowed)):
            package = target.partition(".")[0]
            yield (
                f"{key} is {target}, which is outside nlu, Hydra and its installed plugins; if you trust {package}, "
                f"add it: trusted_packages=[{package}]"
            )


def _named(prefix: str, node: Any) -> Iterator[tuple[str, str]]:
    """Yield the full key and the value of each key that names what is to be called."""
    keys = range(len(node)) if isinstance(node, ListConfig) else list(node)
    for key in keys:
        full_key = f"{prefix}[{key}]" if isinstance(node, ListConfig) else f"{prefix}.{key}"
        # What is missing or cannot be resolved cannot be built either; the whitelist stands behind.
        with _passed_over():
            value = node[key]
            if isinstance(value, DictConfig | ListConfig):
                yield from _named(full_key, value)
            elif isinstance(value, str) and (key in _FACTORIES or value.startswith("ext://")):
                yield full_key, value.removeprefix("ext://")


def _is_launched(config: DictConfig) -> bool:
    return config.hydra.runtime.choices.get("hydra/launcher") not in ("basic", None)


def _is_dry_run(config: DictConfig) -> bool:
    with _passed_over():
        return config.get("dry_run") is True
    return False


def _searches_nothing(config: DictConfig, overrides: Sequence[Override], is_handed_over: bool) -> Iterator[str]:
    """Yield a problem where the command line asks for a search, but the command is one run.

    An experiment may choose a sweeper too: what prepares the data of its search is one run. One that a launcher takes
    would become a search.
    """
    sweeper = config.hydra.runtime.choices.get("hydra/sweeper")
    is_asked_for = is_handed_over or any(override.key_or_group == "hydra/sweeper" for override in overrides)
    if sweeper not in ("basic", None) and is_asked_for:
        yield (
            f"hydra/sweeper is {sweeper}, but without --multirun the command is one run and searches nothing; add "
            "--multirun, or set hydra/sweeper=basic"
        )


def _single(overrides: Sequence[Override]) -> Iterator[str]:
    """Yield what keeps a command from being one run that a launcher takes."""
    for override in overrides:
        if override.is_sweep_override():
            yield sweep_problem(str(override.input_line), override.key_or_group)


def _scored(config: DictConfig) -> Iterator[str]:
    """Yield a problem where another sweeper would take what a job returns, its exit code, for its score."""
    name = config.hydra.runtime.choices.get("hydra/sweeper")
    with _passed_over():
        if not str(config.hydra.sweeper.get(TARGET)).startswith(_SWEEPERS):
            yield (
                f"hydra/sweeper is {name}, which would search blindly: a run tells its scores to our own sweepers "
                "alone; choose hydra/sweeper=hyperband, which searches with Optuna and prunes"
            )


def _installed() -> set[str]:
    """Return the packages of the plugins that are installed, and the full names of those that come with Hydra."""
    plugins = Plugins.instance().discover()
    packages = {plugin.__module__.partition(".")[0] for plugin in plugins} - {"hydra"}
    return packages | {f"{plugin.__module__}.{plugin.__name__}" for plugin in plugins}


@contextmanager
def current_config(config: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` mean this configuration."""
    current = HydraConfig.instance()
    outer = current.cfg
    current.set_config(config)
    try:
        yield
    finally:
        current.cfg = outer


@contextmanager
def _passed_over() -> Iterator[None]:
    try:
        yield
    except OmegaConfBaseException:
        return
