"""What must hold of Hydra's own keys before Hydra builds or writes anything: nothing foreign, nothing lost.

The configuration is composed once more for it, before Hydra starts, which costs a tenth of a second; a command that
only shows something does without. Behind it stands Hydra's own whitelist, which `whitelist` fills.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nlu.config.checks.reading import first_values
from nlu.config.errors import UserError
from nlu.config.targets import TARGET

OWN = (
    "nlu", "hydra_plugins", "hydra.experimental", "optuna.samplers", "logging",
    "sys.stdout", "sys.stderr",
)  # fmt: skip
"""What Hydra's keys may name: ours, installed plugins, Hydra's own, the samplers of its choices, Python's logging."""
_SWEEPERS = ("hydra_plugins.grid_sweeper.", "hydra_plugins.hyperband_sweeper.", "hydra._internal.core_plugins.")
_FACTORIES = (TARGET, "()", "class")
"""keys of callbacks, launchers and sweepers, and of logging, that name what is to be called"""


def require_safe(
    config_name: str, search_path: Sequence[str], overrides: Sequence[str], is_multirun: bool
) -> list[str]:
    """Return the packages that the configuration trusts. Raises UserError with all that is wrong with Hydra's keys.

    `search_path` holds URIs of configuration directories. What does not compose raises what Hydra raises.
    """
    with initialize_config_search_path(list(search_path)):
        config = compose(config_name, overrides=first_values(overrides), return_hydra_config=True)
    is_multirun = is_multirun or config.hydra.mode == RunMode.MULTIRUN
    trusted = [str(package) for package in OmegaConf.select(config, "trusted_packages", default=None) or ()]
    with current_config(config):
        group = "sweep" if is_multirun else "run"
        found = [*_foreign(config, trusted), *place_problems(config, group), *_launched(config, is_multirun)]
        found += _scored(config) if is_multirun else []
    if found:
        raise UserError(*found)
    return trusted


def whitelist(trusted: Sequence[str]) -> list[str]:
    """Return the patterns of what Hydra may build, for its `execution_whitelist`."""
    return [f"{package}.*" for package in (*OWN, *_installed(), *trusted)]


def place_problems(config: DictConfig, group: str) -> Iterator[str]:
    """Yield a problem where `hydra.run` or `hydra.sweep` is no folder of this machine. `group`: run or sweep."""
    for key in ("dir", "subdir") if group == "sweep" else ("dir",):
        # An interpolation that fails is Hydra's to report.
        with _passed_over():
            if "://" in (place := str(config.hydra[group][key])):
                yield (
                    f"hydra.{group}.{key} is {place}, but a run writes into a folder of this machine; set "
                    f"hydra.{group}.{key} to a local folder, and copy it when the run has ended"
                )


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


def _launched(config: DictConfig, is_multirun: bool) -> Iterator[str]:
    name = config.hydra.runtime.choices.get("hydra/launcher")
    if not is_multirun and name not in ("basic", None):
        yield (
            f"hydra/launcher is {name}, but without --multirun a run is not handed over and would train here; add "
            "--multirun, or set hydra/launcher=basic to train here"
        )


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
